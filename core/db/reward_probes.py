"""Reports on rewards: which tasks have probed a version, and on which data set."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from core.db import grading_tasks
from core.db.models import GradingTask, RewardProbe
from core.grading_tasks import GradingTaskKind, GradingTaskStatus, ProbeReward
from core.ids import FileId, RewardVersionId, TenantId


def add(session: Session, *, tenant_id: TenantId, version_id: RewardVersionId, file_id: FileId | None) -> GradingTask:
    """Have the version probed on the data set."""
    request = ProbeReward(version_id=version_id, file_id=file_id).model_dump(mode="json")
    task = grading_tasks.add(session, tenant_id=tenant_id, kind=GradingTaskKind.PROBE_REWARD, request=request)
    session.add(RewardProbe(task_id=task.id, version_id=version_id, file_id=file_id))
    session.flush()
    return task


def find(session: Session, version_id: RewardVersionId, file_id: FileId | None) -> GradingTask | None:
    """The newest probe of the version on exactly this data set."""
    query = _of(version_id).where(RewardProbe.file_id.is_not_distinct_from(file_id))
    return session.scalars(query.limit(1)).first()


def newest(session: Session, version_id: RewardVersionId) -> GradingTask | None:
    """The newest probe of the version, on whatever data set."""
    return session.scalars(_of(version_id).limit(1)).first()


def newest_answers(session: Session, version_ids: Sequence[RewardVersionId]) -> dict[RewardVersionId, dict[str, Any]]:
    """What the newest probe that has ended says of each version; those without one are left out."""
    ended = (
        select(func.max(GradingTask.id))
        .join(RewardProbe)
        .where(RewardProbe.version_id.in_(version_ids), GradingTask.status == GradingTaskStatus.DONE)
        .group_by(RewardProbe.version_id)
    )
    query = select(RewardProbe.version_id, GradingTask.answer).join(GradingTask).where(GradingTask.id.in_(ended))
    return {version_id: answer for version_id, answer in session.execute(query) if answer is not None}


def _of(version_id: RewardVersionId) -> Select[GradingTask]:
    newest_first = GradingTask.id.desc()
    return select(GradingTask).join(RewardProbe).where(RewardProbe.version_id == version_id).order_by(newest_first)
