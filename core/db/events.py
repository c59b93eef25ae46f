"""The ordered log of a job: `seq` is 1, 2, 3, ... without gaps, across attempts."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.models import Job, JobEvent
from core.db.storable import storable_text
from core.ids import EventId, JobId, new_event_id


def add(
    session: Session,
    job_id: JobId,
    *,
    code: str,
    message: str,
    level: str = "info",
    type: str = "message",  # noqa: A002 - OpenAI's word
    data: dict[str, Any] | None = None,
) -> None:
    """Append one event. The counter is raised on the job's row, which stays locked until the commit: no gaps."""
    seq, attempt = session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(next_event_seq=Job.next_event_seq + 1)
        .returning(Job.next_event_seq - 1, Job.attempt)
    ).one()
    session.add(
        JobEvent(
            job_id=job_id,
            seq=seq,
            id=new_event_id(),
            attempt=attempt,
            level=level,
            type=type,
            code=code,
            message=storable_text(message),
            data=data or {},
        )
    )
    session.flush()


def newest(session: Session, job_id: JobId, *, code: str) -> JobEvent | None:
    query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.code == code)
    return session.scalar(query.order_by(JobEvent.seq.desc()).limit(1))


def newest_first(session: Session, job_id: JobId, *, after: EventId | None, limit: int) -> Sequence[JobEvent]:
    """OpenAI's order and cursor: the events older than `after`."""
    query = select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.seq.desc()).limit(limit)
    if after is not None:
        query = query.where(JobEvent.seq < _seq(job_id, after))
    return session.scalars(query).all()


def oldest_first(session: Session, job_id: JobId, *, after_seq: int, limit: int) -> Sequence[JobEvent]:
    """The events behind `after_seq`, for a reader that follows along."""
    query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > after_seq)
    return session.scalars(query.order_by(JobEvent.seq).limit(limit)).all()


def exists(session: Session, job_id: JobId, event_id: EventId) -> bool:
    return session.scalar(select(JobEvent.seq).where(JobEvent.job_id == job_id, JobEvent.id == event_id)) is not None


def _seq(job_id: JobId, event_id: EventId) -> Any:
    return select(JobEvent.seq).where(JobEvent.job_id == job_id, JobEvent.id == event_id).scalar_subquery()
