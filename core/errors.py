"""Errors are named facts: a stable code, a sentence, the field it concerns, and what to do about it."""

import errno
from dataclasses import dataclass
from typing import ClassVar, Self

FULL_DISK_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What an `OSError` says when there is no room; no class of Python's own stands for it."""
DOCS_URL = "/docs/errors#"
"""On the server that answered: it documents the errors that it knows."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with one field; a request reports all of its problems at once."""

    field: str
    """Dotted path in the request body, or `line 17` in an uploaded file."""
    message: str
    code: str = "invalid_value"
    fix: str | None = None


class ServiceError(Exception):
    """The base of every error that a client may see. Subclasses fix `code`, `status` and often `fix`."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    """The HTTP status that the API answers with."""
    type: ClassVar[str] = "invalid_request_error"
    """OpenAI's coarse class: invalid_request_error, authentication_error, server_error."""
    default_fix: ClassVar[str | None] = None
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        fix: str | None = None,
        problems: tuple[Problem, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.fix = fix or self.default_fix
        self.problems = problems

    @property
    def docs(self) -> str:
        return DOCS_URL + self.code


class InvalidRequest(ServiceError):
    """The body, a parameter or an uploaded file does not say what it must."""

    code = "invalid_request"
    status = 422

    @classmethod
    def of(cls, problems: list[Problem], *, subject: str = "The request") -> Self:
        """One error for all `problems`; the first names `param` and `fix`, as OpenAI's clients show one."""
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return cls(
            f"{subject} is not valid: {first.field}: {first.message}{more}",
            param=first.field,
            fix=first.fix,
            problems=tuple(problems),
        )


class InvalidFile(InvalidRequest):
    """An uploaded data set cannot be read."""

    code = "invalid_file"


class InvalidReward(InvalidRequest):
    """Reward source that cannot be parsed, or has no entry point that we know."""

    code = "invalid_reward"


class NotFound(ServiceError):
    """The thing does not exist, or belongs to somebody else: the same answer for both."""

    code = "not_found"
    status = 404
    default_fix = "Check the id; list what you own with the GET endpoint of the collection."


class ModelNotFound(InvalidRequest):
    code = "model_not_found"
    status = 404
    default_fix = "List the usable base models with GET /v1/models."


class ModelNotAllowed(InvalidRequest):
    """A model whose weights cannot be loaded safely (pickles, custom code) or that the operator forbids."""

    code = "model_not_allowed"


class AuthenticationFailed(ServiceError):
    code = "invalid_api_key"
    status = 401
    type = "authentication_error"
    default_fix = "Send `Authorization: Bearer pk_...` with a key made by `podium keys create`."


class Conflict(ServiceError):
    """The thing is in a state that does not allow this."""

    code = "conflict"
    status = 409


class JobNotCancellable(Conflict):
    code = "job_not_cancellable"


class FileInUse(Conflict):
    code = "file_in_use"


class NotReady(Conflict):
    """An artifact that the job has not produced yet, or never will."""

    code = "artifact_not_ready"


class RequestInFlight(Conflict):
    """The same idempotency key is being answered right now."""

    code = "request_in_flight"
    retryable = True


class IdempotencyKeyReused(ServiceError):
    code = "idempotency_key_reused"
    status = 422
    default_fix = "Use a new Idempotency-Key for a different request body."


class PreconditionFailed(ServiceError):
    """What was previewed is no longer what would run."""

    code = "precondition_failed"
    status = 412
    default_fix = "Preview again with ?dry_run=true and send the new ETag in If-Match."


class TooLarge(ServiceError):
    code = "payload_too_large"
    status = 413


class Unavailable(ServiceError):
    """A part that the answer needs is away; the same request may succeed later."""

    code = "service_unavailable"
    status = 503
    type = "server_error"
    retryable = True
    default_fix = "Try again after the time in Retry-After."
