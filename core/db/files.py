"""Uploaded data sets and result files."""

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.models import File, now
from core.ids import FileId, TenantId


def add(session: Session, file: File) -> File:
    session.add(file)
    session.flush()
    session.refresh(file)
    return file


def get_owned(session: Session, tenant_id: TenantId, file_id: FileId) -> File | None:
    return session.scalar(
        select(File).where(File.id == file_id, File.tenant_id == tenant_id, File.deleted_at.is_(None))
    )


def page(
    session: Session, tenant_id: TenantId, *, after: FileId | None, limit: int, purpose: str | None = None
) -> Sequence[File]:
    """Newest first, by keyset on the time-ordered id."""
    query = select(File).where(File.tenant_id == tenant_id, File.deleted_at.is_(None)).order_by(File.id.desc())
    if after is not None:
        query = query.where(File.id < after)
    if purpose is not None:
        query = query.where(File.purpose == purpose)
    return session.scalars(query.limit(limit)).all()


def delete(session: Session, file_id: FileId) -> None:
    """Hide the file; the caller removes the object after the commit."""
    session.execute(update(File).where(File.id == file_id).values(deleted_at=now()))
