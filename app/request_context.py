"""The outermost layer: a request id, one log event per request, and an answer even when our own code fails."""

from time import perf_counter

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import Unexpected, error_response
from app.request_ids import REQUEST_ID_HEADER, begin_request

log = structlog.get_logger()


class RequestContext:
    """ASGI middleware. An exception that no handler knew is logged with its traceback and answered with a plain 500."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = begin_request(Headers(scope=scope).get(REQUEST_ID_HEADER))
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._answer(scope, receive, _Reply(send, request_id))

    async def _answer(self, scope: Scope, receive: Receive, reply: "_Reply") -> None:
        facts = {"method": scope["method"], "path": scope["path"]}
        started_at = perf_counter()
        try:
            await self.app(scope, receive, reply)
        except ClientDisconnect:
            log.info("client_disconnected", **facts)
        except Exception:
            log.exception("request_failed", **facts)
            if reply.status is not None:
                raise  # the reply has begun: only a broken connection tells the client that it is not whole
            await error_response(Unexpected())(scope, receive, reply)
        finally:
            duration_ms = round((perf_counter() - started_at) * 1000, 1)
            log.info("request_answered", **facts, status=reply.status, duration_ms=duration_ms)


class _Reply:
    """`send` that adds the request id and remembers the status."""

    def __init__(self, send: Send, request_id: str) -> None:
        self.status: int | None = None
        self._send = send
        self._request_id = request_id

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=message)[REQUEST_ID_HEADER] = self._request_id
        await self._send(message)
