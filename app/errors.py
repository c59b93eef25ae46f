"""One envelope for everything that goes wrong, whoever noticed it: our code, FastAPI, the database, or nobody."""

import difflib
import json
from collections.abc import Sequence
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from app.request_ids import current_request_id
from app.validation import invalid_request
from core.db.session import LEDGER_AWAY
from core.errors import DOCS_URL, ServiceError, Unavailable

RETRY_AFTER_S = 2
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

log = structlog.get_logger()


class Unexpected(ServiceError):
    """A fault of ours. What happened is in the log under the request id, and never in the answer."""

    type = "server_error"
    default_fix = "Try again; if it happens again, send the request_id to the operator."

    def __init__(self) -> None:
        super().__init__("The server failed to answer this request.")


class RouteNotFound(ServiceError):
    code = "route_not_found"
    status = 404


class MethodNotAllowed(ServiceError):
    code = "method_not_allowed"
    status = 405


class UnsupportedMediaType(ServiceError):
    """The body is sent as something that this operation does not read."""

    code = "unsupported_media_type"
    status = 415


class RangeNotSatisfiable(ServiceError):
    code = "range_not_satisfiable"
    status = 416
    default_fix = "Ask for bytes below the size that Content-Range names."


class FieldError(BaseModel):
    """One thing wrong with one field."""

    model_config = ConfigDict(frozen=True)

    field: str = Field(description="Path of the field as the client wrote it, or `line 17` of an uploaded file.")
    message: str
    code: str
    fix: str | None = None


class ErrorDetail(BaseModel):
    model_config = ConfigDict(frozen=True)

    message: str = Field(description="What is wrong, in one sentence.")
    type: str = Field(description="`invalid_request_error`, `authentication_error` or `server_error`.")
    code: str = Field(description="Stable name of the error, for programs.")
    param: str | None = Field(None, description="The first field that is wrong, if one is.")
    fix: str | None = Field(None, description="What to do about it.")
    docs: str
    request_id: str = Field(description="Also in the `x-request-id` header, and in the server's log.")
    errors: list[FieldError] = Field(description="Everything that is wrong, at once.")


class ErrorReply(BaseModel):
    """The body of every answer that is not a success."""

    model_config = ConfigDict(frozen=True)

    error: ErrorDetail


def error_response(error: ServiceError, headers: dict[str, str] | None = None) -> Response:
    """The envelope, with the headers that tell clients whether trying again can help."""
    reply = ErrorReply(
        error=ErrorDetail(
            message=error.message,
            type=error.type,
            code=error.code,
            param=error.param,
            fix=error.fix,
            docs=error.docs,
            request_id=current_request_id(),
            errors=[FieldError(field=p.field, message=p.message, code=p.code, fix=p.fix) for p in error.problems],
        )
    )
    content = json.dumps(reply.model_dump())  # ASCII only: whatever a message quotes can be sent
    return Response(content, error.status, {**_headers(error), **(headers or {})}, "application/json")


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(RequestValidationError, _on_invalid_request)
    app.add_exception_handler(HTTPException, _on_http_exception)
    for away in (*LEDGER_AWAY, PoolTimeout):
        app.add_exception_handler(away, _on_database_error)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses=` of an operation: the envelope, documented for each status it can answer with."""
    return {
        status: {
            "model": ErrorReply,
            "description": _DESCRIPTIONS[status],
            "content": {"application/json": {"example": _example(status)}},
        }
        for status in statuses
    }


def _headers(error: ServiceError) -> dict[str, str]:
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if error.status == 503 or error.retryable:
        return {"Retry-After": str(RETRY_AFTER_S)}
    if error.status == 409:
        return {"x-should-retry": "false"}  # OpenAI's client would try a state conflict twice more
    return {}


def _on_service_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    if error.status >= 500:
        log.error("service_error", code=error.code, exc_info=error)
    return error_response(error)


def _on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(invalid_request(request, error))


def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return error_response(_route_not_found(request))
    if error.status_code == 405:
        allow = ", ".join(_allowed_methods(request))
        message = f"{request.method} is not possible here."
        return error_response(MethodNotAllowed(message, fix=f"Use {allow}."), {"Allow": allow})
    log.error("http_exception", status=error.status_code, exc_info=error)
    return error_response(Unexpected())


def _on_database_error(_: Request, error: Exception) -> Response:
    log.error("database_unavailable", reason=str(getattr(error, "orig", error)))
    return error_response(Unavailable("The database does not answer."))


def _route_not_found(request: Request) -> RouteNotFound:
    known: Sequence[str] = list(request.app.openapi()["paths"])
    near = difflib.get_close_matches(request.url.path, known, n=1, cutoff=0.75)
    fix = f"Did you mean {near[0]}?" if near else "GET /openapi.json lists every path."
    return RouteNotFound(f"There is no {request.url.path[:200]} here.", fix=fix)


def _allowed_methods(request: Request) -> list[str]:
    """Every method of the resource: Starlette names only those of the first route with its path."""
    return [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]


_DESCRIPTIONS = {
    401: "The API key is missing, wrong or revoked.",
    404: "There is no such thing, or it belongs to somebody else: the same answer for both.",
    409: "The state of the thing does not allow this, or the same Idempotency-Key is being answered.",
    412: "What was previewed is no longer what would run.",
    413: "The body is larger than the server takes.",
    415: "The body is sent as something that this operation does not read.",
    416: "The file has no such bytes.",
    422: "The request is not valid; every problem is named, with a fix for each.",
    500: "The server failed; the request id finds the reason in its log.",
    503: "A part that the answer needs is away; `Retry-After` says when to try again.",
}
_EXAMPLES = {
    401: ("authentication_error", "invalid_api_key", "The API key is not valid.", None),
    404: ("invalid_request_error", "file_not_found", "There is no such file.", "file_id"),
    409: ("invalid_request_error", "file_in_use", "A job that is not finished needs this file.", "file_id"),
    412: ("invalid_request_error", "precondition_failed", "The price changed since the preview.", None),
    413: ("invalid_request_error", "payload_too_large", "The file is larger than 512 MiB.", "file"),
    415: ("invalid_request_error", "unsupported_media_type", "The body is not JSON.", None),
    416: ("invalid_request_error", "range_not_satisfiable", "The file has no such bytes.", None),
    422: (
        "invalid_request_error",
        "invalid_request",
        "The request is not valid: limit: must be less than or equal to 100",
        "limit",
    ),
    500: ("server_error", "internal_error", "The server failed to answer this request.", None),
    503: ("server_error", "service_unavailable", "The database does not answer.", None),
}


def _example(status: int) -> dict[str, Any]:
    kind, code, message, param = _EXAMPLES[status]
    detail: dict[str, Any] = {
        "message": message,
        "type": kind,
        "code": code,
        "param": param,
        "fix": None,
        "docs": DOCS_URL + code,
        "request_id": "req-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d",
        "errors": [],
    }
    return {"error": detail}
