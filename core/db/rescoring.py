"""What of a job can be graded again. Of no step is read what a resume has superseded."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Text, cast, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.db.models import EvaluationRecord, Job, RolloutRecord, StepMetrics
from core.ids import JobId


@dataclass(frozen=True, slots=True)
class Outline:
    """A recorded rollout without its texts."""

    index: int
    row: int
    """Line of the training file."""
    size_bytes: int
    """As JSON."""


def rollout_counts(session: Session, job: Job, *, from_step: int, to_step: int) -> dict[int, int]:
    """By step, of those that have rollouts on record."""
    query = (
        select(RolloutRecord.step, func.count().label("rollouts"))
        .where(RolloutRecord.job_id == job.id, RolloutRecord.step.between(from_step, to_step))
        .where(_is_current(job, RolloutRecord.step, RolloutRecord.attempt))
        .group_by(RolloutRecord.step)
    )
    return {row.step: row.rollouts for row in session.execute(query)}


def outlines(session: Session, job_id: JobId, step: int) -> list[Outline]:
    query = (
        select(RolloutRecord.index, RolloutRecord.rollout["row"].as_integer(), _json_bytes(RolloutRecord.rollout))
        .where(RolloutRecord.job_id == job_id, RolloutRecord.step == step)
        .order_by(RolloutRecord.index)
    )
    return [Outline(*row) for row in session.execute(query)]


def rollouts(session: Session, job_id: JobId, *, step: int, indices: Collection[int]) -> Sequence[RolloutRecord]:
    query = select(RolloutRecord).where(RolloutRecord.job_id == job_id, RolloutRecord.step == step)
    return session.scalars(query.where(RolloutRecord.index.in_(indices)).order_by(RolloutRecord.index)).all()


def silent_shares(session: Session, job: Job, steps: Iterable[int]) -> dict[int, float | None]:
    """What the run measured over all groups of each step, where it has told."""
    return _told(session, job, steps, "signal/silent_share")


def generated_groups(session: Session, job: Job, steps: Iterable[int]) -> dict[int, float | None]:
    """Of each step, where dynamic sampling may have made them more than the job's prompts per step."""
    return _told(session, job, steps, "draw/groups_generated")


def evaluation_names(session: Session, job: Job, *, from_step: int, to_step: int) -> list[str]:
    """In the order of their steps."""
    query = (
        select(EvaluationRecord.name)
        .where(EvaluationRecord.job_id == job.id, EvaluationRecord.step.between(from_step, to_step))
        .where(_is_current(job, EvaluationRecord.step, EvaluationRecord.attempt))
        .order_by(EvaluationRecord.step, EvaluationRecord.created_at)
    )
    return list(session.scalars(query))


def evaluation_bytes(session: Session, job_id: JobId, name: str) -> int:
    """As JSON; 0 where there is none."""
    query = select(_json_bytes(EvaluationRecord.evaluation)).where(EvaluationRecord.job_id == job_id)
    return session.scalar(query.where(EvaluationRecord.name == name)) or 0


def _told(session: Session, job: Job, steps: Iterable[int], metric: str) -> dict[int, float | None]:
    query = select(StepMetrics.step, StepMetrics.metrics[metric].as_float().label("value")).where(
        StepMetrics.job_id == job.id, StepMetrics.step.in_(list(steps)), StepMetrics.step <= job.step
    )
    return {row.step: row.value for row in session.execute(query)}


def _is_current(job: Job, step: InstrumentedAttribute[int], attempt: InstrumentedAttribute[int]) -> ColumnElement[bool]:
    """Up to where the job is; beyond that only the running attempt counts, which has not told of that step yet."""
    return or_(step <= job.step, attempt == job.attempt)


def _json_bytes(document: InstrumentedAttribute[dict[str, Any]]) -> ColumnElement[int]:
    return func.octet_length(cast(document, Text))
