"""The first answer to a create, kept for its Idempotency-Key (draft-ietf-httpapi-idempotency-key-header).

The key is stored in the same transaction as what it created: both exist, or neither.
"""

from datetime import timedelta
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.db.models import IdempotencyKey, now
from core.ids import TenantId


def lock(session: Session, tenant_id: TenantId, key: str) -> bool:
    """Hold this key until the transaction ends. False: another request with it is in flight."""
    name = func.hashtextextended(f"{tenant_id}/{key}", 0)
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(name))))


def find(session: Session, tenant_id: TenantId, key: str) -> IdempotencyKey | None:
    return session.get(IdempotencyKey, (tenant_id, key))


def save(
    session: Session, tenant_id: TenantId, key: str, *, fingerprint: str, status: int, body: dict[str, Any]
) -> None:
    session.add(IdempotencyKey(tenant_id=tenant_id, key=key, fingerprint=fingerprint, status=status, body=body))
    session.flush()


def forget(session: Session, *, older_than_s: float) -> int:
    """Delete the answers that nobody will ask for again; how many they were."""
    old = IdempotencyKey.created_at < now() - timedelta(seconds=older_than_s)
    return len(session.scalars(delete(IdempotencyKey).where(old).returning(IdempotencyKey.key)).all())
