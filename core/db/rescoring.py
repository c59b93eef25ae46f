"""What of a job can be graded again."""

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from core.db.models import RolloutRecord
from core.ids import JobId


def rollout_counts(session: Session, job_id: JobId, *, from_step: int, to_step: int) -> dict[int, int]:
    """By step, of those that have rollouts."""
    query = (
        select(RolloutRecord.step, func.count().label("rollouts"))
        .where(RolloutRecord.job_id == job_id, RolloutRecord.step.between(from_step, to_step))
        .group_by(RolloutRecord.step)
    )
    return {row.step: row.rollouts for row in session.execute(query)}
