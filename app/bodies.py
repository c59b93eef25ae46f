"""The door for request bodies: how large they may be, and what may not be in them.

JSON that passes holds only what Postgres can keep and JSON can carry on: no NUL, no lone surrogate, no number beyond
64 bits, no NaN or Infinity (Python's parser would let all of them in), and no nesting that breaks a parser.
"""

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.types import Message, Receive

from app.dependencies import resources_of
from app.errors import UnsupportedMediaType
from app.validation import Path, field_path, unknown_field
from core.errors import InvalidRequest, Problem, TooLarge

MAX_NESTING = 64
_MAX_PROBLEMS = 20
_MAX_DIGITS = 24
_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")
_JSON_TYPE = re.compile(r"application/([\w.-]+\+)?json", re.IGNORECASE)


class BoundedRoute(APIRoute):
    """Checks the JSON body, the path and the query before FastAPI looks at them; `route_class` of every router.

    An operation that declares no body (an upload reads its own, `app.uploads`) never has one read here.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        has_body = self.body_field is not None
        names = (*_query_names(self.dependant), *_deep_names(self))

        async def bounded(request: Request) -> Response:
            _check_target(request, names)
            if has_body:
                request = capped(request, resources_of(request).settings.max_body_bytes)
                await read_json(request)
            return await handle(request)

        return bounded


async def read_json(request: Request) -> Any:
    """The request's JSON body. Raises UnsupportedMediaType, InvalidRequest with all problems, or TooLarge."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if not _JSON_TYPE.fullmatch(content_type):
        what = content_type[:100] or "no content type"
        raise UnsupportedMediaType(
            f"The body is sent as {what}, not as JSON.", fix="Send Content-Type: application/json."
        )
    return parse_json(await request.body())


def parse_json(data: bytes) -> Any:
    if not data:
        raise _invalid("the body is empty", "missing_body", "Send a JSON object.")
    try:
        value = json.loads(data.decode(), parse_int=_integer)
    except UnicodeDecodeError as error:
        message = f"not UTF-8 at byte {error.start}"
        raise _invalid(message, "invalid_json", "Send JSON in UTF-8.") from None
    except json.JSONDecodeError as error:
        message = f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        raise _invalid(message, "invalid_json", "Correct the JSON.") from None
    except RecursionError:
        raise InvalidRequest.of([_too_deep(())]) from None
    problems = list(_faults((), value))
    if problems:
        raise InvalidRequest.of(problems[:_MAX_PROBLEMS])
    return value


def capped(request: Request, max_bytes: int) -> Request:
    """The same request, with a body of at most `max_bytes`; it keeps the body once read."""
    error = too_large("body", max_bytes)
    if declared_length(request) > max_bytes:
        raise error
    return Request(request.scope, capped_receive(request.receive, max_bytes, error))


def declared_length(request: Request) -> int:
    """What Content-Length promises; 0 without it. The bytes are counted all the same."""
    length = request.headers.get("content-length", "")
    return int(length[:_MAX_DIGITS]) if re.fullmatch("[0-9]+", length) else 0


def capped_receive(receive: Receive, max_bytes: int, error: TooLarge) -> Receive:
    """`receive` that raises `error` once more than `max_bytes` have come, whatever Content-Length says."""
    count = 0

    async def counting() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > max_bytes:
            raise error
        return message

    return counting


def too_large(what: str, max_bytes: int) -> TooLarge:
    return TooLarge(
        f"The {what} is larger than {size_text(max_bytes)}.",
        param=what,
        fix=f"Send at most {max_bytes} bytes, or have the operator raise the cap.",
    )


def size_text(size_bytes: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:g} {unit}"
    return f"{size_bytes} bytes"


def fault_of_text(text: str) -> tuple[str, str, str] | None:
    """Why Postgres or JSON could not keep this text, as (message, code, fix)."""
    if bad := _NOT_TEXT.search(text):
        what = "a NUL character" if bad.group() == "\0" else "a lone surrogate"
        return f"contains {what} at character {bad.start() + 1}", "invalid_value", "Remove it: it is not text."
    return None


def _query_names(dependant: Dependant) -> Iterator[str]:
    yield from (parameter.alias for parameter in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _deep_names(route: APIRoute) -> Iterator[str]:
    """`metadata[` for `?metadata[team]=search`: OpenAPI's deepObject, which FastAPI knows only as a remark."""
    for parameter in (route.openapi_extra or {}).get("parameters", ()):
        if parameter.get("style") == "deepObject":
            yield f"{parameter['name']}["


def _check_target(request: Request, names: Sequence[str]) -> None:
    problems = [
        Problem(field, "contains a NUL character", "invalid_value", "Remove it: it is not text.")
        for field, value in (*request.path_params.items(), *request.query_params.multi_items())
        if "\0" in f"{field}{value}"
    ]
    problems += [  # a misspelt parameter would silently do something else
        unknown_field((name[:64],), names)
        for name in request.query_params
        if name not in names and f"{name.partition('[')[0]}[" not in names
    ]
    if problems:
        raise InvalidRequest.of(problems[:_MAX_PROBLEMS])


def _integer(digits: str) -> int:
    """Python refuses to read more than 4,300 digits; anything this long is beyond 64 bits anyway."""
    return int(digits[:_MAX_DIGITS])


def _faults(path: tuple[str | int, ...], value: object) -> Iterator[Problem]:
    if isinstance(value, dict | list):
        if len(path) >= MAX_NESTING:
            yield _too_deep(path)
            return
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(key, str) and (fault := fault_of_text(key)):
                yield Problem(field_path((*path, key.encode(errors="backslashreplace").decode())), *fault)
            yield from _faults((*path, key), item)
    elif fault := _fault_of(value):
        yield Problem(field_path(path), *fault)


def _fault_of(value: object) -> tuple[str, str, str] | None:
    if isinstance(value, str):
        return fault_of_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number", "invalid_value", "Send a number; leave the field out for its default."
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "is an integer beyond 64 bits", "invalid_value", "Send a smaller number."
    return None


def _too_deep(path: Path) -> Problem:
    message = f"is nested deeper than {MAX_NESTING} levels"
    return Problem(field_path(path[:8]), message, "nested_too_deep", "Flatten the value.")


def _invalid(message: str, code: str, fix: str) -> InvalidRequest:
    return InvalidRequest.of([Problem("body", message, code, fix)])
