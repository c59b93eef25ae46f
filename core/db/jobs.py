"""Jobs: adding, reading, and the one door through which a status changes."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select, true, tuple_, update
from sqlalchemy.orm import Session

from core.db import events
from core.db.models import Export, InlineReward, Job, now
from core.ids import FileId, JobId, TenantId
from core.integrations import Integration
from core.spec import JobSpec
from core.status import TRANSITIONS, JobKind, JobStatus, StatusReason

ACTIVE = (JobStatus.VALIDATING_FILES, JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.PAUSED)


class IllegalTransition(Exception):
    """Code asked for a change that the table of `core.status` does not know."""

    def __init__(self, source: JobStatus, target: JobStatus) -> None:
        super().__init__(f"no transition from {source} to {target}")


def add(
    session: Session,
    job_id: JobId,
    *,
    tenant_id: TenantId,
    spec: JobSpec,
    model: str,
    method: Mapping[str, Any],
    metadata: Mapping[str, str],
    inline_sources: Mapping[str, str],
    kind: JobKind = JobKind.GRPO,
    integrations: Sequence[Integration] = (),
) -> Job:
    """Record a queued job. This row is the job; telling a worker is only a hint."""
    job = Job(
        id=job_id,
        tenant_id=tenant_id,
        kind=kind,
        status=JobStatus.QUEUED,
        model=model,
        suffix=spec.suffix,
        seed=spec.seed,
        metadata_=dict(metadata),
        method=dict(method),
        integrations=[integration.as_reply() for integration in integrations],
        spec=spec.model_dump(mode="json"),
        training_file=spec.training.file_id,
        validation_file=spec.held_out.file_id if spec.held_out else None,
        branched_from=spec.start_from.checkpoint_id if spec.start_from else None,
    )
    session.add(job)
    session.flush()
    for name, source in inline_sources.items():
        session.add(InlineReward(job_id=job_id, name=name, source=source))
    session.add_all(Export(job_id=job_id, target=integration.type) for integration in integrations)
    events.add(session, job_id, code="queued", message="The job is recorded and waits for a worker.")
    session.refresh(job)
    return job


def get(session: Session, job_id: JobId) -> Job | None:
    return session.get(Job, job_id)


def get_owned(session: Session, tenant_id: TenantId, job_id: JobId, *, kind: JobKind = JobKind.GRPO) -> Job | None:
    """The job, if it is the tenant's and of this kind; both are asked in the query itself."""
    return session.scalar(select(Job).where(Job.id == job_id, Job.tenant_id == tenant_id, Job.kind == kind))


def page(
    session: Session,
    tenant_id: TenantId,
    *,
    after: JobId | None,
    limit: int,
    status: JobStatus | None = None,
    metadata: Mapping[str, str] | None = None,
    kind: JobKind = JobKind.GRPO,
) -> Sequence[Job]:
    """Those of one kind, newest first, by keyset on the time-ordered id."""
    query = select(Job).where(Job.tenant_id == tenant_id, Job.kind == kind).order_by(Job.id.desc()).limit(limit)
    if after is not None:
        query = query.where(Job.id < after)
    if status is not None:
        query = query.where(Job.status == status)
    if metadata:
        query = query.where(Job.metadata_.contains(dict(metadata)))
    return session.scalars(query).all()


def inline_source(session: Session, job_id: JobId, name: str) -> str | None:
    return session.scalar(select(InlineReward.source).where(InlineReward.job_id == job_id, InlineReward.name == name))


def any_active_using(session: Session, file_id: FileId) -> bool:
    """Whether an unfinished job still needs the file."""
    uses = or_(Job.training_file == file_id, Job.validation_file == file_id)
    return session.scalar(select(Job.id).where(uses, Job.status.in_(ACTIVE)).limit(1)) is not None


def queued_before(session: Session, job: Job) -> int:
    """How many queued ones, of all tenants and kinds, workers are told of before it; 0 when it is not queued itself."""
    if job.status is not JobStatus.QUEUED:
        return 0
    is_older = tuple_(Job.created_at, Job.id) < (job.created_at, job.id)
    older = select(func.count()).where(Job.status == JobStatus.QUEUED, is_older)
    return session.scalar(older) or 0


def transition(
    session: Session,
    job_id: JobId,
    source: JobStatus,
    target: JobStatus,
    *guards: ColumnElement[bool],
    code: str,
    message: str,
    reason: StatusReason | None = None,
    level: str = "info",
    data: dict[str, Any] | None = None,
    **values: Any,
) -> int | None:
    """Change the status and record the event, if the job is still what the caller thinks it is.

    Returns the job's attempt, or None when the row no longer matched: somebody else was first.
    """
    if target not in TRANSITIONS[source]:
        raise IllegalTransition(source, target)
    if target is not JobStatus.RUNNING:
        values |= {"stage": None, "activity": None, "lease_owner": None, "lease_expires_at": None}
    if target.is_terminal:
        values["finished_at"] = now()
    attempt = session.scalar(
        update(Job)
        .where(Job.id == job_id, Job.status == source, *guards)
        .values(status=target, status_reason=reason, **values)
        .returning(Job.attempt)
    )
    if attempt is not None:
        data = {"from": source, "to": target, **(data or {})}
        events.add(session, job_id, code=code, message=message, level=level, data=data)
    return attempt


def request_cancel(session: Session, job: Job) -> bool:
    """Record the wish, once. A job that nobody holds is cancelled at once; a running one by its supervisor.

    False when the job is over already: it may have ended since `job` was read.
    """
    session.refresh(job, with_for_update=True)
    if job.status.is_terminal:
        return False
    if job.cancel_requested_at is None:
        session.execute(update(Job).where(Job.id == job.id).values(cancel_requested_at=now()))
        if job.status is JobStatus.RUNNING:
            events.add(session, job.id, code="cancel_requested", message="Cancelling: the trainer is told to stop.")
    if job.status is not JobStatus.RUNNING:
        cancel_unheld(session, job.id, job.status)
    return True


def cancel_unheld(session: Session, job_id: JobId, source: JobStatus) -> bool:
    """Cancel a job that no worker holds, if that is wished; whether it was."""
    cancelled = transition(
        session,
        job_id,
        source,
        JobStatus.CANCELLED,
        Job.cancel_requested_at.is_not(None),
        code="cancelled",
        message="The job was cancelled while no worker held it.",
        reason=StatusReason.USER_CANCELLED,
    )
    return cancelled is not None


def request_pause(session: Session, job: Job) -> bool:
    """Record the wish, once. A queued job is paused at once; a running one by its supervisor, with a checkpoint.

    False when the job is over already. A paused job stays as it is.
    """
    session.refresh(job, with_for_update=True)
    if job.status.is_terminal:
        return False
    if job.pause_requested_at is None and job.status is not JobStatus.PAUSED:
        session.execute(update(Job).where(Job.id == job.id).values(pause_requested_at=now()))
        if job.status is JobStatus.RUNNING:
            message = "Pausing: the trainer ends its step and saves."
            events.add(session, job.id, code="pause_requested", message=message)
    if job.status is JobStatus.QUEUED:
        settle_wishes(session, job.id)
    return True


def resume(session: Session, job: Job) -> bool:
    """Queue a paused job again, due at once. False when it is not paused, and is not about to be.

    A pause that its supervisor has not made true yet is taken back, as far as that still helps.
    """
    session.refresh(job, with_for_update=True)
    taken_back = job.status is JobStatus.RUNNING and job.pause_requested_at is not None
    if taken_back:
        session.execute(update(Job).where(Job.id == job.id).values(pause_requested_at=None))
        events.add(session, job.id, code="pause_withdrawn", message="Resumed before the pause took effect.")
    if taken_back or job.status is not JobStatus.PAUSED:
        return taken_back
    safe = f"step {job.durable_step}" if job.durable_step else "the start"
    resumed = transition(
        session,
        job.id,
        JobStatus.PAUSED,
        JobStatus.QUEUED,
        code="resume_requested",
        message=f"Queued again: the next worker goes on from {safe}.",
        pause_requested_at=None,
        hinted_at=None,
    )
    assert resumed is not None, "the row is locked, and it was paused"
    return True


def settle_wishes(session: Session, job_id: JobId) -> bool:
    """Make the wishes for a queued job true: cancel it, else pause it; whether it has left the queue."""
    if cancel_unheld(session, job_id, JobStatus.QUEUED):
        return True
    job = session.get_one(Job, job_id, populate_existing=True)
    paused = transition(
        session,
        job_id,
        JobStatus.QUEUED,
        JobStatus.PAUSED,
        Job.pause_requested_at.is_not(None),
        code="paused",
        message=f"The job was paused while no worker held it. {what_is_safe(job)}",
        reason=StatusReason.USER_PAUSED,
        data={"durable_step": job.durable_step or 0},
    )
    return paused is not None


def what_is_safe(job: Job) -> str:
    """A sentence for whoever stops the job, or finds it stopped."""
    if not job.durable_step:
        return "No checkpoint had been made: it will begin at the start."
    redone = job.step - job.durable_step
    again = f"; {redone} steps after it will be done again" if redone > 0 else ", and nothing will be done again"
    return f"Step {job.durable_step} is safe{again}."


def safety(job: Job) -> dict[str, int | None]:
    """The same as data of an event."""
    return {
        "step": job.step,
        "durable_step": job.durable_step,
        "redone_steps": max(0, job.step - (job.durable_step or 0)),
    }


def forget_hint(session: Session, job_id: JobId) -> None:
    """The worker that was told of it will not take it: tell another one at once."""
    session.execute(update(Job).where(Job.id == job_id).values(hinted_at=None))


def due(session: Session, *, hint_repeat_s: float, limit: int = 100, gpus: int | None = None) -> Sequence[JobId]:
    """Take the jobs, of whatever kind, that a worker should be told of, the oldest first, and note that it was told.

    Due is what is queued, or running on an expired lease, and was not hinted within `hint_repeat_s`. With `gpus` only
    what needs exactly so many. `SKIP LOCKED` lets any number of dispatchers share the work.
    """
    rows = (
        select(Job.id)
        .where(*_is_due(hint_repeat_s), true() if gpus is None else _gpus_needed() == gpus)
        .order_by(Job.created_at, Job.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    taken = session.scalars(rows).all()
    if taken:
        session.execute(update(Job).where(Job.id.in_(taken)).values(hinted_at=now()))
    return taken


def gpus_of_due(session: Session, *, hint_repeat_s: float) -> Sequence[int]:
    """The numbers of GPUs that jobs which are due need, the smallest first."""
    needed = _gpus_needed()
    return session.scalars(select(needed).where(*_is_due(hint_repeat_s)).group_by(needed).order_by(needed)).all()


def _is_due(hint_repeat_s: float) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    lately = now() - timedelta(seconds=hint_repeat_s)
    waiting = or_(Job.status == JobStatus.QUEUED, and_(Job.status == JobStatus.RUNNING, Job.lease_expires_at < now()))
    return waiting, or_(Job.hinted_at.is_(None), Job.hinted_at < lately)


def _gpus_needed() -> ColumnElement[int]:
    """One for a signal probe, whatever its job will need; and for a spec of another version: a claim says what is wrong
    with it.
    """
    wanted = func.coalesce(Job.spec["resources"]["gpus"].as_integer(), 1)
    return case((Job.kind == JobKind.GRPO, wanted), else_=1)
