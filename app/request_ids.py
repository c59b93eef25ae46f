"""The id of the request that is being answered: in the reply's `x-request-id`, in every log line and every error."""

import re
from contextvars import ContextVar

from core.ids import new_request_id

REQUEST_ID_HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_current: ContextVar[str] = ContextVar("request_id")


def begin_request(offered: str | None) -> str:
    """Take the client's own id if it is harmless in logs and headers, else make one."""
    request_id = offered if offered and _SANE.fullmatch(offered) else new_request_id()
    _current.set(request_id)
    return request_id


def current_request_id() -> str:
    return _current.get()
