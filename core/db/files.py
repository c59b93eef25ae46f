"""Uploaded data sets and result files."""

from collections.abc import Sequence

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from core.db.models import File, now
from core.ids import FileId, TenantId


def add(session: Session, file: File) -> File:
    session.add(file)
    session.flush()
    session.refresh(file)
    return file


def get_owned(session: Session, tenant_id: TenantId, file_id: FileId) -> File | None:
    return session.scalar(_owned(tenant_id).where(File.id == file_id))


def get_owned_to_use(session: Session, tenant_id: TenantId, file_id: FileId) -> File | None:
    """The file, and until the transaction ends nobody deletes it: the new job that needs it is seen first."""
    return session.scalar(_owned(tenant_id).where(File.id == file_id).with_for_update(read=True))


def get_owned_to_delete(session: Session, tenant_id: TenantId, file_id: FileId) -> File | None:
    """The file, and until the transaction ends nobody starts to use it."""
    return session.scalar(_owned(tenant_id).where(File.id == file_id).with_for_update())


def page(
    session: Session,
    tenant_id: TenantId,
    *,
    after: FileId | None,
    limit: int,
    purpose: str | None = None,
    oldest_first: bool = False,
) -> Sequence[File]:
    """Newest first unless asked otherwise, by keyset on the time-ordered id."""
    query = _owned(tenant_id).order_by(File.id if oldest_first else File.id.desc())
    if after is not None:
        query = query.where(File.id > after if oldest_first else File.id < after)
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return session.scalars(query.limit(limit)).all()


def delete(session: Session, file_id: FileId) -> None:
    """Hide the file; the caller removes the object after the commit."""
    session.execute(update(File).where(File.id == file_id).values(deleted_at=now()))


def _owned(tenant_id: TenantId) -> Select[File]:
    return select(File).where(File.tenant_id == tenant_id, File.deleted_at.is_(None))
