"""What a run reports while it goes: steps, rollouts, evaluations, artifacts.

Every write is made under a lease: call `leases.hold` first in the same transaction. (An exporter's artifact is shown
under its claim: `core.db.exports`.)
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from core.db.leases import Lease
from core.db.models import (
    Artifact,
    Checkpoint,
    EvaluationRecord,
    GroupsRecord,
    Job,
    JobAttempt,
    RolloutRecord,
    StepMetrics,
    now,
)
from core.ids import JobId
from core.results import Evaluation
from core.signal import GroupOutcome
from core.status import Stage


def journal_offset(session: Session, lease: Lease) -> int:
    """Bytes of this attempt's journal that are in the ledger: what a commit whose answer was lost had written."""
    attempt = session.get_one(JobAttempt, (lease.job_id, lease.attempt), populate_existing=True)
    return attempt.journal_offset


def set_journal_offset(session: Session, lease: Lease, offset: int) -> None:
    session.execute(
        update(JobAttempt)
        .where(JobAttempt.job_id == lease.job_id, JobAttempt.attempt == lease.attempt)
        .values(journal_offset=offset)
    )


def set_stage(session: Session, lease: Lease, stage: Stage) -> None:
    session.execute(update(Job).where(Job.id == lease.job_id).values(stage=stage))


def add_step(session: Session, lease: Lease, step: int, metrics: Mapping[str, float | None]) -> None:
    """One row per (job, step), exactly once: sending it again changes nothing, a later attempt replaces it."""
    row = {"job_id": lease.job_id, "step": step, "attempt": lease.attempt, "metrics": dict(metrics)}
    statement = insert(StepMetrics).values(row)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[StepMetrics.job_id, StepMetrics.step],
            set_={"attempt": lease.attempt, "metrics": statement.excluded.metrics, "created_at": now()},
            where=StepMetrics.attempt < lease.attempt,
        )
    )
    session.execute(update(Job).where(Job.id == lease.job_id).values(step=step))
    session.execute(
        update(JobAttempt)
        .where(JobAttempt.job_id == lease.job_id, JobAttempt.attempt == lease.attempt)
        .values(last_step=step)
    )


def last_step_before(session: Session, lease: Lease) -> int:
    """The last step that an earlier attempt reported; 0 where none did."""
    query = select(func.max(StepMetrics.step)).where(StepMetrics.job_id == lease.job_id)
    return session.scalar(query.where(StepMetrics.attempt < lease.attempt)) or 0


def recorded_metrics(session: Session, lease: Lease, step: int) -> dict[str, float | None] | None:
    """What an earlier attempt reported of the step."""
    query = select(StepMetrics.metrics).where(StepMetrics.job_id == lease.job_id, StepMetrics.step == step)
    return session.scalar(query.where(StepMetrics.attempt < lease.attempt))


def is_audited(session: Session, lease: Lease) -> bool:
    return session.get_one(JobAttempt, (lease.job_id, lease.attempt), populate_existing=True).resume_audit is not None


def set_audit(session: Session, lease: Lease, report: Mapping[str, Any]) -> None:
    """What came out when this attempt did recorded steps again."""
    session.execute(
        update(JobAttempt)
        .where(JobAttempt.job_id == lease.job_id, JobAttempt.attempt == lease.attempt)
        .values(resume_audit=dict(report))
    )


def add_rollouts(session: Session, lease: Lease, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
    """The rollouts of a step, each under its `index`; those of an earlier attempt at the step go."""
    session.execute(delete(RolloutRecord).where(RolloutRecord.job_id == lease.job_id, RolloutRecord.step == step))
    if rollouts:
        session.execute(
            insert(RolloutRecord),
            [
                {
                    "job_id": lease.job_id,
                    "step": step,
                    "index": rollout["index"],
                    "attempt": lease.attempt,
                    "rollout": dict(rollout),
                }
                for rollout in rollouts
            ],
        )


def drop_rollouts(session: Session, lease: Lease, *, up_to_step: int) -> None:
    """Those of older steps have been on record for long enough."""
    if up_to_step > 0:
        old = (RolloutRecord.job_id == lease.job_id, RolloutRecord.step <= up_to_step)
        session.execute(delete(RolloutRecord).where(*old))


def add_groups(session: Session, lease: Lease, step: int, rows: Mapping[GroupOutcome, Sequence[int]]) -> None:
    """How the groups of the step's generation batch came out; those of an earlier attempt at the step go."""
    row = {"job_id": lease.job_id, "step": step, "attempt": lease.attempt, "rows": dict(rows)}
    replaced = {"attempt": lease.attempt, "rows": row["rows"]}
    statement = insert(GroupsRecord).values(row)
    session.execute(
        statement.on_conflict_do_update(index_elements=[GroupsRecord.job_id, GroupsRecord.step], set_=replaced)
    )


def add_evaluation(session: Session, lease: Lease, name: str, step: int, evaluation: Mapping[str, Any]) -> None:
    """Keep every task's answers. The baseline of an earlier attempt stays as it is."""
    row = {
        "job_id": lease.job_id,
        "name": name,
        "step": step,
        "attempt": lease.attempt,
        "evaluation": dict(evaluation),
    }
    statement = insert(EvaluationRecord).values(row)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=[EvaluationRecord.job_id, EvaluationRecord.name],
            set_={
                "step": step,
                "attempt": lease.attempt,
                "evaluation": statement.excluded.evaluation,
                "created_at": now(),
            },
            where=EvaluationRecord.name != "baseline",
        )
    )


def show_artifact(
    session: Session,
    job_id: JobId,
    *,
    attempt: int,
    name: str,
    key: str,
    size_bytes: int,
    sha256: str,
    content_type: str,
) -> None:
    """Make an uploaded object downloadable under the name, in place of the one before."""
    row = {"attempt": attempt, "key": key, "size_bytes": size_bytes, "sha256": sha256, "content_type": content_type}
    session.execute(
        insert(Artifact)
        .values(job_id=job_id, name=name, **row)
        .on_conflict_do_update(index_elements=[Artifact.job_id, Artifact.name], set_=row | {"created_at": now()})
    )


def set_resumed_from(session: Session, lease: Lease, step: int | None) -> None:
    """Where this attempt begins; None is the start. The job's `step` goes back to it: later ones are superseded."""
    session.execute(
        update(JobAttempt)
        .where(JobAttempt.job_id == lease.job_id, JobAttempt.attempt == lease.attempt)
        .values(resumed_from_step=step, last_step=step or 0)
    )
    session.execute(update(Job).where(Job.id == lease.job_id).values(step=step or 0))


def steps(
    session: Session,
    job_id: JobId,
    *,
    from_step: int = 0,
    to_step: int | None = None,
    limit: int | None = None,
) -> Sequence[StepMetrics]:
    query = select(StepMetrics).where(StepMetrics.job_id == job_id, StepMetrics.step >= from_step)
    if to_step is not None:
        query = query.where(StepMetrics.step <= to_step)
    return session.scalars(query.order_by(StepMetrics.step).limit(limit)).all()


def newest_steps(session: Session, job_id: JobId, *, limit: int) -> Sequence[StepMetrics]:
    """Newest first, up to where the job is: what an earlier attempt did beyond that is superseded."""
    query = select(StepMetrics).where(StepMetrics.job_id == job_id, StepMetrics.step <= reached(job_id))
    return session.scalars(query.order_by(StepMetrics.step.desc()).limit(limit)).all()


def reached(job_id: JobId, to_step: int | None = None) -> ColumnElement[int]:
    """The step that the job has reached, or an earlier one, for a query of its steps."""
    step = select(Job.step).where(Job.id == job_id).scalar_subquery()
    return step if to_step is None else func.least(step, to_step)


def rollouts(session: Session, job_id: JobId, *, step: int) -> Sequence[RolloutRecord]:
    query = select(RolloutRecord).where(RolloutRecord.job_id == job_id, RolloutRecord.step == step)
    return session.scalars(query.order_by(RolloutRecord.index)).all()


def evaluations(
    session: Session, job_id: JobId, *, from_step: int = 0, to_step: int | None = None
) -> Sequence[EvaluationRecord]:
    """Each has every task's answers."""
    query = select(EvaluationRecord).where(EvaluationRecord.job_id == job_id, EvaluationRecord.step >= from_step)
    if to_step is not None:
        query = query.where(EvaluationRecord.step <= to_step)
    return session.scalars(query.order_by(EvaluationRecord.step, EvaluationRecord.created_at)).all()


def evaluations_by_name(session: Session, job_id: JobId) -> dict[str, Evaluation]:
    """With every task's answers, in the order in which they were taken."""
    return {record.name: Evaluation.model_validate(record.evaluation) for record in evaluations(session, job_id)}


def evaluation(session: Session, job_id: JobId, name: str) -> EvaluationRecord | None:
    return session.get(EvaluationRecord, (job_id, name))


def evaluation_of(session: Session, checkpoint: Checkpoint) -> EvaluationRecord | None:
    """That of exactly its weights, on the way: taken by the attempt that saved it, or by one that went on from it."""
    went_on = select(JobAttempt.attempt).where(
        JobAttempt.job_id == checkpoint.job_id,
        JobAttempt.attempt > checkpoint.attempt,
        JobAttempt.resumed_from_step == checkpoint.step,
    )
    return session.scalar(
        select(EvaluationRecord)
        .where(EvaluationRecord.job_id == checkpoint.job_id, EvaluationRecord.step == checkpoint.step)
        .where(EvaluationRecord.name.not_in(("baseline", "final")))
        .where(or_(EvaluationRecord.attempt == checkpoint.attempt, EvaluationRecord.attempt.in_(went_on)))
    )


def artifacts(session: Session, job_id: JobId) -> Sequence[Artifact]:
    return session.scalars(select(Artifact).where(Artifact.job_id == job_id).order_by(Artifact.name)).all()


def artifact(session: Session, job_id: JobId, name: str) -> Artifact | None:
    return session.get(Artifact, (job_id, name))


def attempts(session: Session, job_id: JobId) -> Sequence[JobAttempt]:
    return session.scalars(select(JobAttempt).where(JobAttempt.job_id == job_id).order_by(JobAttempt.attempt)).all()


def redone_steps(session: Session, job_id: JobId) -> int:
    """Steps trained more than once: what was done beyond the step that the next attempt started from."""
    return sum(redone for _, redone in redone_by(attempts(session, job_id)))


def redone_by(attempts_in_order: Sequence[JobAttempt]) -> Iterator[tuple[JobAttempt, int]]:
    """Each attempt that did again what an earlier one had done, with how many steps that were."""
    reached = 0
    for attempt in attempts_in_order:
        if attempt.last_step:  # else it ended before its first step, and took nothing back
            start = attempt.resumed_from_step or 0
            if reached > start:
                yield attempt, reached - start
            reached = attempt.last_step


def clock(session: Session) -> datetime:
    """The database's time of day: every time that a job's story tells is its."""
    moment: datetime = session.scalars(select(now())).one()
    return moment


def held_seconds(session: Session, job_id: JobId) -> float:
    """Wall seconds that attempts held a worker, the running one up to now."""
    span = func.extract("epoch", func.coalesce(JobAttempt.ended_at, now()) - JobAttempt.started_at)
    return float(session.scalar(select(func.coalesce(func.sum(span), 0)).where(JobAttempt.job_id == job_id)) or 0)
