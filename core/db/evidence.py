"""What the ledger knows of a job that explains where it stands: read in one transaction, judged elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db import checkpoints, exports, jobs, progress
from core.db.models import Checkpoint, Export, Job, JobAttempt, JobEvent, StepMetrics

TROUBLE = ("warn", "error")


@dataclass(frozen=True, slots=True)
class Notice:
    """Every warning of one code in the event log; what it says is what the newest one said."""

    code: str
    message: str
    data: dict[str, Any]
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Evidence:
    at: datetime
    """When it was read, by the database's clock, as every other time here."""
    status_since: datetime
    jobs_ahead: int
    """Queued jobs that workers are told of before this one; 0 unless it is queued itself."""
    attempts: Sequence[JobAttempt]
    newest_step: StepMetrics | None
    durable: Checkpoint | None
    """The newest checkpoint that is whole."""
    corrupt: Sequence[Checkpoint]
    notices: Sequence[Notice]
    failing_exports: Sequence[Export] = ()
    """What a target has not taken when it was last tried, or never will."""


def gather(session: Session, job: Job) -> Evidence:
    steps = progress.newest_steps(session, job.id, limit=1)
    corrupt = select(Checkpoint).where(Checkpoint.job_id == job.id, Checkpoint.corrupt_at.is_not(None))
    return Evidence(
        at=progress.clock(session),
        status_since=_status_since(session, job),
        jobs_ahead=jobs.queued_before(session, job),
        attempts=progress.attempts(session, job.id),
        newest_step=steps[0] if steps else None,
        durable=next(checkpoints.usable(session, job.id), None),
        corrupt=session.scalars(corrupt.order_by(Checkpoint.step)).all(),
        notices=_notices(session, job),
        failing_exports=exports.failing(session, job.id),
    )


def _status_since(session: Session, job: Job) -> datetime:
    """When `transition` wrote the status that the job has; a job that was never anything else has it from the start."""
    entered = select(func.max(JobEvent.created_at)).where(
        JobEvent.job_id == job.id, JobEvent.data["to"].astext == job.status
    )
    return session.scalar(entered) or job.created_at


def _notices(session: Session, job: Job) -> Sequence[Notice]:
    totals = (
        select(
            func.max(JobEvent.seq).label("newest"),
            func.count().label("count"),
            func.min(JobEvent.created_at).label("first_at"),
            func.max(JobEvent.created_at).label("last_at"),
        )
        .where(JobEvent.job_id == job.id, JobEvent.level.in_(TROUBLE))
        .group_by(JobEvent.code)
        .subquery()
    )
    rows = session.execute(
        select(JobEvent.code, JobEvent.message, JobEvent.data, totals.c.count, totals.c.first_at, totals.c.last_at)
        .join(totals, JobEvent.seq == totals.c.newest)
        .where(JobEvent.job_id == job.id)
        .order_by(JobEvent.seq)
    )
    return [Notice(*row) for row in rows]
