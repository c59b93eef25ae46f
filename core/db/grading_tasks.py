"""Reward code that the API wants run: rows that a grading worker takes, under a lease, and answers.

As with jobs, `attempt` is the fencing token and all times are the database's clock. A task is small: its lease is
longer than any task may take, so it is never renewed, and a task whose lease has run out has lost its worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, func, null, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import InstrumentedAttribute, Session

from core.db.models import GradingTask, RewardProbe, now
from core.grading_tasks import GradingTaskKind, GradingTaskStatus
from core.ids import GradingTaskId, TenantId, new_grading_task_id

MAX_ATTEMPTS = 3
_COUNTING_LOCK = (0x706F6469, 2)
"""Of pg_advisory_xact_lock(int, int): whoever counts what runs, before it takes one more, is alone."""
_REFERENCES: tuple[InstrumentedAttribute[GradingTaskId], ...] = (RewardProbe.task_id,)
"""Columns that name tasks whose answers are kept for good."""
_LOST = {
    "code": "grading_worker_lost",
    "message": f"The grading worker was lost {MAX_ATTEMPTS} times while it was at this.",
    "param": None,
    "fix": "Look at the grading worker's log, and the machine's: running out of memory is the usual cause.",
}
_WITHDRAWN = {"code": "withdrawn", "message": "Nobody waits for the answer any more.", "param": None, "fix": None}


@dataclass(frozen=True, slots=True)
class Claim:
    task_id: GradingTaskId
    attempt: int
    tenant_id: TenantId
    kind: GradingTaskKind
    request: dict[str, Any]


def add(session: Session, *, tenant_id: TenantId, kind: GradingTaskKind, request: Mapping[str, Any]) -> GradingTask:
    """A queued task. Whoever adds it sends the hint, right after the commit, and so it counts as sent."""
    task = GradingTask(
        id=new_grading_task_id(),
        tenant_id=tenant_id,
        kind=kind,
        status=GradingTaskStatus.QUEUED,
        request=dict(request),
        hinted_at=now(),
    )
    session.add(task)
    session.flush()
    session.refresh(task)
    return task


def get(session: Session, task_id: GradingTaskId) -> GradingTask | None:
    return session.get(GradingTask, task_id, populate_existing=True)


def claim(
    session: Session, task_id: GradingTaskId, *, ttl_s: float, most_of_a_tenant: int, most_long: int
) -> Claim | None:
    """Take the task if it is free; None when somebody else was first, or is about to be.

    A task that has lost `MAX_ATTEMPTS` workers fails here, for good: it is likely what kills them. So does a lost one
    that nobody waits for any more. A tenant of whom `most_of_a_tenant` tasks run gives way to one of whom fewer run and
    another waits: its task is due for another hint at once. So is one of a kind that may take long, when `most_long` of
    those run: for a grader's trial somebody waits at the other end.
    """
    row = select(GradingTask).where(GradingTask.id == task_id, _is_free())
    task = session.scalar(row.with_for_update(skip_locked=True))
    if task is None:
        return None
    if task.error is not None or task.attempt >= MAX_ATTEMPTS:
        _end(session, task.id, task.attempt, GradingTaskStatus.FAILED, error=task.error or _LOST)
        return None
    session.execute(select(func.pg_advisory_xact_lock(*_COUNTING_LOCK)))
    if _gives_way(session, task.tenant_id, most_of_a_tenant) or _is_one_too_long(session, task.kind, most_long):
        session.execute(update(GradingTask).where(GradingTask.id == task.id).values(hinted_at=None))
        return None
    attempt = task.attempt + 1
    session.execute(
        update(GradingTask)
        .where(GradingTask.id == task.id)
        .values(status=GradingTaskStatus.RUNNING, attempt=attempt, lease_expires_at=now() + timedelta(seconds=ttl_s))
    )
    return Claim(task.id, attempt, task.tenant_id, task.kind, task.request)


def finish(session: Session, claim: Claim, answer: Mapping[str, Any]) -> bool:
    """Write the answer. False, and nothing is written, when another worker has the task by now."""
    return _end(session, claim.task_id, claim.attempt, GradingTaskStatus.DONE, answer=dict(answer))


def fail(session: Session, claim: Claim, error: Mapping[str, Any]) -> bool:
    """Give the task up for good, with `{code, message, param, fix}`; as `finish`."""
    return _end(session, claim.task_id, claim.attempt, GradingTaskStatus.FAILED, error=dict(error))


def withdraw(session: Session, task_id: GradingTaskId) -> None:
    """Nobody waits any more: a worker that comes later has nothing to do.

    What is running goes on to its end; if that worker is lost, no other one begins.
    """
    mark = {"error": _WITHDRAWN, "request": _without_sources()}
    of_status = update(GradingTask).where(GradingTask.id == task_id)
    session.execute(of_status.where(GradingTask.status == GradingTaskStatus.RUNNING).values(mark))
    ended = {"status": GradingTaskStatus.FAILED, "finished_at": now()}
    session.execute(of_status.where(GradingTask.status == GradingTaskStatus.QUEUED).values(mark | ended))


def due(session: Session, *, hint_repeat_s: float, limit: int = 100) -> Sequence[GradingTaskId]:
    """Take the tasks that a worker should be told of again, and note that it was told; see `core.db.jobs.due`."""
    lately = now() - timedelta(seconds=hint_repeat_s)
    rows = (
        select(GradingTask.id)
        .where(_is_free(), or_(GradingTask.hinted_at.is_(None), GradingTask.hinted_at < lately))
        .order_by(GradingTask.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    taken = session.scalars(rows).all()
    if taken:
        session.execute(update(GradingTask).where(GradingTask.id.in_(taken)).values(hinted_at=now()))
    return taken


def forget(session: Session, *, older_than_s: float) -> int:
    """Delete the ended tasks whose answers nobody will ask for again; how many they were."""
    kept = [select(column).where(column == GradingTask.id).exists() for column in _REFERENCES]
    old = is_older(older_than_s)
    query = delete(GradingTask).where(old, *(~named for named in kept)).returning(GradingTask.id)
    return len(session.scalars(query).all())


def is_older(seconds: float) -> ColumnElement[bool]:
    older: ColumnElement[bool] = GradingTask.finished_at < now() - timedelta(seconds=seconds)
    return older


def _gives_way(session: Session, tenant_id: TenantId, most: int) -> bool:
    """Whether as many of the tenant's tasks run, and a task waits of a tenant of whom fewer run."""
    running = dict(
        session.execute(
            select(GradingTask.tenant_id, func.count()).where(_runs()).group_by(GradingTask.tenant_id)
        ).all()
    )
    if running.get(tenant_id, 0) < most:
        return False
    full = [tenant for tenant, count in running.items() if count >= most]
    waiting = select(GradingTask.id).where(
        GradingTask.status == GradingTaskStatus.QUEUED, GradingTask.tenant_id.not_in(full)
    )
    return session.scalar(select(waiting.exists())) is True


def _is_one_too_long(session: Session, kind: GradingTaskKind, most: int) -> bool:
    """Whether the kind may take long, and as many of such run."""
    if not kind.may_take_long:
        return False
    long = [one for one in GradingTaskKind if one.may_take_long]
    running = session.scalar(select(func.count()).where(_runs(), GradingTask.kind.in_(long)))
    return running is not None and running >= most


def _runs() -> ColumnElement[bool]:
    return and_(GradingTask.status == GradingTaskStatus.RUNNING, GradingTask.lease_expires_at > now())


def _without_sources() -> ColumnElement[Any]:
    """The request without source and credentials that came with it: nobody will need them again."""
    return GradingTask.request.op("-", return_type=JSONB())("sources").op("-", return_type=JSONB())("source")


def _is_free() -> ColumnElement[bool]:
    lost = and_(GradingTask.status == GradingTaskStatus.RUNNING, GradingTask.lease_expires_at < now())
    return or_(GradingTask.status == GradingTaskStatus.QUEUED, lost)


def _end(
    session: Session,
    task_id: GradingTaskId,
    attempt: int,
    status: GradingTaskStatus,
    *,
    answer: dict[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> bool:
    """An attempt whose lease ran out may still end the task, as long as no other one has begun."""
    said = {"answer": null() if answer is None else answer, "error": null() if error is None else dict(error)}
    ended = session.scalar(
        update(GradingTask)
        .where(
            GradingTask.id == task_id,
            GradingTask.status == GradingTaskStatus.RUNNING,
            GradingTask.attempt == attempt,
        )
        .values(status=status, finished_at=now(), lease_expires_at=None, request=_without_sources(), **said)
        .returning(GradingTask.id)
    )
    return ended is not None
