"""`Idempotency-Key`: a create that is sent twice happens once.

A service that creates something takes an `Idempotency` and writes its one transaction like this:

    with sessions.begin() as session:
        if (first := once.first_answer(session)) is not None:
            return first
        row = things.add(session, ...)
        return once.answer(session, 201, ThingObject.of(row))

`first_answer` holds the key until the transaction ends, so that of two requests at once one waits for nothing and gets
409 `request_in_flight`. `answer` stores the reply in the same transaction as what it tells of: both exist, or neither.
Errors are never stored. Without the header both do nothing but build the reply.

Slow work before the transaction (uploads, network) should be spared on a repeat: ask `once.earlier_answer(sessions)`
first. An endpoint with a JSON body takes `once: IdempotencyDep`; one that reads its body itself takes
`once: UploadIdempotencyDep` and says what came with `once.about(digest)`.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.orm import Session

from app.auth import CallerDep
from core.db import idempotency
from core.db.session import Sessions
from core.errors import IdempotencyKeyReused, InvalidRequest, Problem, RequestInFlight
from core.ids import TenantId

HEADER = "Idempotency-Key"
MAX_KEY_LENGTH = 255
_KEY = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Idempotency:
    tenant_id: TenantId
    key: str | None
    fingerprint: str
    """SHA-256 of method, path, query and body."""

    def about(self, content: str) -> "Idempotency":
        """The same key for a body that was read elsewhere: `content` says what was in it (digest, fields)."""
        return replace(self, fingerprint=_digest(self.fingerprint, content))

    def earlier_answer(self, sessions: Sessions) -> JSONResponse | None:
        """The answer to an earlier request with this key, if there was one. Raises RequestInFlight."""
        with sessions() as session:
            return self.first_answer(session)

    def first_answer(self, session: Session) -> JSONResponse | None:
        """Hold the key for this transaction; the first answer if there was one. Raises RequestInFlight."""
        if self.key is None:
            return None
        if not idempotency.lock(session, self.tenant_id, self.key):
            fix = "Wait for the first request's answer, or try again in a moment."
            raise RequestInFlight("A request with this Idempotency-Key is being answered.", param=HEADER, fix=fix)
        return self._find(session, self.key)

    def answer(self, session: Session, status: int, reply: BaseModel) -> JSONResponse:
        """The reply, kept for the key in this transaction."""
        body: dict[str, Any] = reply.model_dump(mode="json", by_alias=True)
        if self.key is not None:
            idempotency.save(session, self.tenant_id, self.key, fingerprint=self.fingerprint, status=status, body=body)
        return JSONResponse(body, status)

    def _find(self, session: Session, key: str) -> JSONResponse | None:
        first = idempotency.find(session, self.tenant_id, key)
        if first is None:
            return None
        if first.fingerprint != self.fingerprint:
            raise IdempotencyKeyReused("This Idempotency-Key was used for another request.", param=HEADER)
        return JSONResponse(first.body, first.status, {"Idempotent-Replayed": "true"})


def located(answer: JSONResponse, collection: str) -> JSONResponse:
    """The answer to a create, first or replayed, with the URL of what was created."""
    answer.headers["Location"] = f"{collection}/{json.loads(bytes(answer.body))['id']}"
    return answer


def _named(
    request: Request,
    caller: CallerDep,
    key: Annotated[
        str | None,
        Header(
            alias=HEADER,
            description="A name for this request, at most 255 printable ASCII characters. Sent again with the same "
            "body it gets the first answer (`Idempotent-Replayed: true`), with another body 422.",
        ),
    ] = None,
) -> Idempotency:
    if key is not None and not (_KEY.fullmatch(key) and len(key) <= MAX_KEY_LENGTH):
        message = f"must be 1 to {MAX_KEY_LENGTH} printable ASCII characters without spaces"
        raise InvalidRequest.of([Problem(HEADER, message, "invalid_value", "Use a UUID.")])
    return Idempotency(caller.tenant_id, key, _digest(request.method, request.url.path, request.url.query))


UploadIdempotencyDep = Annotated[Idempotency, Depends(_named)]


async def _with_body(request: Request, named: UploadIdempotencyDep) -> Idempotency:
    return named.about(hashlib.sha256(await request.body()).hexdigest())


IdempotencyDep = Annotated[Idempotency, Depends(_with_body)]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
