"""Reports on rewards: which tasks have probed a version, as it is called, and on which data set."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, delete, func, select
from sqlalchemy.orm import Session

from core.db import grading_tasks
from core.db.models import GradingTask, RewardProbe
from core.grading_tasks import GradingTaskKind, GradingTaskStatus, ProbeReward, ProbeSource
from core.ids import FileId, RewardVersionId, TenantId
from core.reward_source import RewardForm

_HOW = (GradingTask.request["form"].as_string(), GradingTask.request["entry_point"].as_string())
"""How a probe called its version; null: as that says."""


@dataclass(frozen=True, slots=True)
class Called:
    """A version of a reward, and how it is called: unset is as the version itself says."""

    version_id: RewardVersionId
    form: RewardForm | None = None
    entry_point: str | None = None


def add(session: Session, *, tenant_id: TenantId, called: Called, file_id: FileId | None) -> GradingTask:
    """Have the version probed on the data set."""
    request = ProbeReward(
        version_id=called.version_id, file_id=file_id, form=called.form, entry_point=called.entry_point
    ).model_dump(mode="json")
    task = grading_tasks.add(session, tenant_id=tenant_id, kind=GradingTaskKind.PROBE_REWARD, request=request)
    session.add(RewardProbe(task_id=task.id, version_id=called.version_id, file_id=file_id))
    session.flush()
    return task


def of_source(session: Session, tenant_id: TenantId, asked: ProbeSource) -> GradingTask:
    """The tenant's newest probe of this source on the data set; a new one where there is none of use.

    Of none is one that failed, or found that the source does not load: that may have been the machine. No version
    names it, so it goes with the other tasks that are old (`grading_tasks.forget`).
    """
    request = asked.model_dump(mode="json")
    same = select(GradingTask).where(
        GradingTask.tenant_id == tenant_id,
        GradingTask.kind == GradingTaskKind.PROBE_SOURCE,
        GradingTask.status != GradingTaskStatus.FAILED,
        GradingTask.request.contains({name: value for name, value in request.items() if name != "source"}),
    )
    task = session.scalars(same.order_by(GradingTask.id.desc()).limit(1)).first()
    if task is not None and (task.answer is None or task.answer["loads"]):
        return task
    return grading_tasks.add(session, tenant_id=tenant_id, kind=GradingTaskKind.PROBE_SOURCE, request=request)


def find(session: Session, called: Called, file_id: FileId | None) -> GradingTask | None:
    """The newest probe of the version, called like this, on exactly this data set."""
    query = _of(called).where(RewardProbe.file_id.is_not_distinct_from(file_id))
    return session.scalars(query.limit(1)).first()


def newest(session: Session, called: Called) -> GradingTask | None:
    """The newest probe of the version, on whatever data set."""
    return session.scalars(_of(called).limit(1)).first()


def newest_answer(session: Session, called: Called) -> dict[str, Any] | None:
    """What the newest probe that has ended well says of the version."""
    done = _of(called).where(GradingTask.status == GradingTaskStatus.DONE)
    task = session.scalars(done.limit(1)).first()
    return None if task is None else task.answer


def forget_failed(session: Session, *, older_than_s: float) -> int:
    """Let go of the probes that failed, the newest of a version on a data set apart; how many they were."""
    newest = select(func.max(RewardProbe.task_id)).group_by(RewardProbe.version_id, RewardProbe.file_id, *_HOW)
    newest = newest.join(GradingTask)
    failed = select(GradingTask.id).where(
        GradingTask.status == GradingTaskStatus.FAILED, grading_tasks.is_older(older_than_s)
    )
    query = delete(RewardProbe).where(RewardProbe.task_id.in_(failed), RewardProbe.task_id.not_in(newest))
    return len(session.scalars(query.returning(RewardProbe.task_id)).all())


def _of(called: Called) -> Select[GradingTask]:
    form, entry_point = _HOW
    return (
        select(GradingTask)
        .join(RewardProbe)
        .where(
            RewardProbe.version_id == called.version_id,
            form.is_not_distinct_from(called.form),
            entry_point.is_not_distinct_from(called.entry_point),
        )
        .order_by(GradingTask.id.desc())
    )
