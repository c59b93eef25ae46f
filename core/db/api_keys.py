"""API keys: 256 random bits, shown once, stored as a SHA-256 digest, each bound to one tenant."""

import hashlib
import secrets
from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.models import ApiKey, now
from core.ids import TenantId, new_key_id

PREFIX = "pk_"


def create(session: Session, *, tenant_id: TenantId, name: str) -> tuple[ApiKey, str]:
    """A new key and its secret. This is the only moment at which the secret is known."""
    secret = PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(id=new_key_id(), tenant_id=tenant_id, name=name, secret_sha256=_digest(secret))
    session.add(key)
    session.flush()
    session.refresh(key)
    return key, secret


def find(session: Session, secret: str) -> ApiKey | None:
    """The live key of a secret. The index sees digests of 256 random bits: timing tells an attacker nothing."""
    return session.scalar(select(ApiKey).where(ApiKey.secret_sha256 == _digest(secret), ApiKey.revoked_at.is_(None)))


def list_all(session: Session) -> Sequence[ApiKey]:
    return session.scalars(select(ApiKey).order_by(ApiKey.id)).all()


def revoke(session: Session, key_id: str) -> bool:
    """Whether there was such a live key."""
    statement = update(ApiKey).where(ApiKey.id == key_id, ApiKey.revoked_at.is_(None)).values(revoked_at=now())
    return session.execute(statement.returning(ApiKey.id)).one_or_none() is not None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
