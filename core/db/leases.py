"""The right to run a job: taken by one worker at a time, renewed while it lives, lost when it does not.

`attempt` is the fencing token (Kleppmann, "How to do distributed locking"): every claim raises it, and every later
write first shows that it still holds `attempt` on an unexpired lease. All times are the database's clock.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, cast, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from core.activity import Activity
from core.db import jobs
from core.db.models import Job, JobAttempt, now
from core.ids import JobId, TenantId
from core.spec import JobSpec
from core.status import JobKind, JobStatus, Stage, StatusReason


class LeaseLost(Exception):
    """Somebody else may hold the job now: stop, and write nothing more."""


@dataclass(frozen=True, slots=True)
class Lease:
    job_id: JobId
    attempt: int
    tenant_id: TenantId
    spec: JobSpec
    kind: JobKind = JobKind.GRPO


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the API has asked of the job since the lease was renewed last."""

    cancel: bool
    pause: bool


def claim(
    session: Session, job_id: JobId, *, owner: str, ttl_s: float, max_failures: int, gpus: int = 1
) -> Lease | None:
    """Take the job if it is free, and wants no more than `gpus`. Nothing is returned when somebody else was first.

    A job whose lease expired counts one failure against its crash budget; over budget it fails here, for good.
    """
    job = session.get(Job, job_id, with_for_update=True, populate_existing=True)
    if job is None or job.status not in (JobStatus.QUEUED, JobStatus.RUNNING):
        return None
    if job.status is JobStatus.RUNNING and not _requeue_if_expired(session, job, max_failures=max_failures):
        return None
    spec = _readable_spec(session, job)
    if spec is None or (job.kind is JobKind.GRPO and spec.resources.gpus > gpus):
        return None
    attempt = jobs.transition(
        session,
        job_id,
        JobStatus.QUEUED,
        JobStatus.RUNNING,
        code="claimed",
        message="A worker took the job.",
        data={"owner": owner},
        attempt=Job.attempt + 1,
        stage=Stage.PREPARING,
        lease_owner=owner,
        lease_expires_at=now() + timedelta(seconds=ttl_s),
        started_at=func.coalesce(Job.started_at, now()),
    )
    assert attempt is not None, "the row is locked, and it was queued"
    session.add(JobAttempt(job_id=job_id, attempt=attempt, owner=owner))
    session.flush()
    return Lease(job_id, attempt, job.tenant_id, spec, job.kind)


def renew(session: Session, lease: Lease, *, ttl_s: float, activity: Activity | None = None) -> Wishes:
    """Prolong the lease, say what the run does, and hear what was asked meanwhile. Raises `LeaseLost`."""
    row = session.execute(
        update(Job)
        .where(*_held(lease))
        .values(
            lease_expires_at=now() + timedelta(seconds=ttl_s),
            activity=None if activity is None else _dated(activity),
        )
        .returning(Job.cancel_requested_at, Job.pause_requested_at)
    ).one_or_none()
    if row is None:
        raise LeaseLost
    cancel, pause = row
    return Wishes(cancel=cancel is not None, pause=pause is not None)


def _dated(activity: Activity) -> ColumnElement[Any]:
    """`DatedActivity` as JSON."""
    since = func.extract("epoch", now()) - activity.for_s
    return func.jsonb_build_object("since", since).concat(cast(activity.model_dump(mode="json"), JSONB))


def hold(session: Session, lease: Lease) -> None:
    """Lock the job's row for this transaction, if the lease still stands; raises `LeaseLost` otherwise.

    Whoever writes for a job calls this first. The lock keeps the next claim waiting until the commit, so the writes
    of attempt n always come before those of attempt n + 1.
    """
    if session.scalar(select(Job.id).where(*_held(lease)).with_for_update()) is None:
        raise LeaseLost


def release(session: Session, lease: Lease, *, reason: StatusReason, message: str, **values: Any) -> None:
    """Give the job back to the queue; the next worker need not wait for the lease to end.

    With `hinted_at=None` a worker is told at once; else not sooner than the hint's interval after the last time, so
    that what fails in its first second is not tried three times in three. A wish that this worker has not heard of
    takes effect here. Raises `LeaseLost`.
    """
    _leave(
        session,
        lease,
        JobStatus.QUEUED,
        ended=reason,
        code=reason,
        message=message,
        reason=reason,
        level="warn",
        **values,
    )
    jobs.settle_wishes(session, lease.job_id)


def pause(
    session: Session, lease: Lease, *, reason: StatusReason, message: str, data: dict[str, Any], **values: Any
) -> None:
    """Leave the job where a person has to resume it. A cancel that came meanwhile wins. Raises `LeaseLost`."""
    _leave(
        session,
        lease,
        JobStatus.PAUSED,
        ended=reason,
        code="paused",
        message=message,
        reason=reason,
        level="info" if reason is StatusReason.USER_PAUSED else "warn",
        data=data,
        pause_requested_at=func.coalesce(Job.pause_requested_at, now()),
        **values,
    )
    jobs.cancel_unheld(session, lease.job_id, JobStatus.PAUSED)


def finish(
    session: Session,
    lease: Lease,
    target: JobStatus,
    *,
    message: str,
    reason: StatusReason | None = None,
    error: dict[str, Any] | None = None,
    **values: Any,
) -> None:
    """End the job for good, under the lease. Raises `LeaseLost`."""
    _leave(
        session,
        lease,
        target,
        ended=reason or target,
        code=target,
        message=message,
        reason=reason,
        level="error" if target is JobStatus.FAILED else "info",
        error=error,
        **values,
    )


def settle_lost(session: Session, *, max_failures: int, limit: int = 100) -> None:
    """Cancel or pause the jobs for which that is wished and whose worker was lost: no other worker is needed for it."""
    lost = (
        select(Job)
        .where(Job.status == JobStatus.RUNNING, Job.lease_expires_at < now())
        .where(or_(Job.cancel_requested_at.is_not(None), Job.pause_requested_at.is_not(None)))
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    for job in session.scalars(lost).all():
        _requeue_if_expired(session, job, max_failures=max_failures)


def _leave(session: Session, lease: Lease, target: JobStatus, *, ended: str, **change: Any) -> None:
    if jobs.transition(session, lease.job_id, JobStatus.RUNNING, target, *_held(lease), **change) is None:
        raise LeaseLost
    _close_attempt(session, lease.job_id, lease.attempt, ended, at=now())


def _held(lease: Lease) -> tuple[ColumnElement[bool], ...]:
    return (
        Job.id == lease.job_id,
        Job.status == JobStatus.RUNNING,
        Job.attempt == lease.attempt,
        Job.lease_expires_at > now(),
    )


def _requeue_if_expired(session: Session, job: Job, *, max_failures: int) -> bool:
    """Put a job of a dead worker back; returns whether it may be claimed now. The row is locked by the caller."""
    failures, expired_at = job.failures + 1, job.lease_expires_at
    spent = failures >= max_failures and job.cancel_requested_at is None and job.pause_requested_at is None
    error = {
        "code": "worker_lost",
        "message": f"The job lost its worker, which was failure {failures} of the {max_failures} that it may have.",
        "param": None,
        "fix": "Look at the last events and the worker's log: running out of memory is the usual cause.",
    }
    attempt = jobs.transition(
        session,
        job.id,
        JobStatus.RUNNING,
        JobStatus.FAILED if spent else JobStatus.QUEUED,
        Job.lease_expires_at < now(),
        code="worker_lost",
        message="Its worker was lost: the lease ran out.",
        reason=StatusReason.WORKER_LOST,
        level="error" if spent else "warn",
        failures=failures,
        **({"error": error} if spent else {}),
    )
    if attempt is None:
        return False
    _close_attempt(session, job.id, attempt, StatusReason.WORKER_LOST, at=expired_at)
    return not spent and not jobs.settle_wishes(session, job.id)


def _readable_spec(session: Session, job: Job) -> JobSpec | None:
    """The spec; a queued job whose spec this version cannot read fails, instead of breaking every worker it meets."""
    try:
        return JobSpec.model_validate(job.spec)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        message = f"This version cannot read the job's spec: {field}: {first['msg']}."
    detail = {"code": StatusReason.INVALID_SPEC, "message": message, "param": field, "fix": "Submit the job again."}
    jobs.transition(
        session,
        job.id,
        JobStatus.QUEUED,
        JobStatus.FAILED,
        code=JobStatus.FAILED,
        message=message,
        reason=StatusReason.INVALID_SPEC,
        level="error",
        error=detail,
    )
    return None


def _close_attempt(session: Session, job_id: JobId, attempt: int, ended: str, *, at: Any) -> None:
    """`at` is the database's clock: now, or when the lease of a lost worker ran out."""
    session.execute(
        update(JobAttempt)
        .where(JobAttempt.job_id == job_id, JobAttempt.attempt == attempt)
        .values(ended_at=at, ended=ended)
    )
