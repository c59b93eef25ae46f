"""Checkpoints: committed, found again, given up.

The row is the commit point: its objects are in the store before it is, and are deleted only after it says so. Writes of
a run are made under its lease: call `leases.hold` first in the same transaction.

What a branch needs is never a mark on the row that somebody would have to take away again: it is asked of the branch's
own row whenever retention looks.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, false, func, not_, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session, aliased

from core.db.jobs import ACTIVE
from core.db.leases import Lease
from core.db.models import Checkpoint, Job, now
from core.ids import CheckpointId, JobId, new_checkpoint_id
from core.spec import AdapterMethod
from core.status import TERMINAL

_WHOLE = (Checkpoint.corrupt_at.is_(None), Checkpoint.collected_at.is_(None))
"""Neither damaged nor given up: what can be resumed from, downloaded and branched from."""

SAFE_COUNT = 2
"""So many whole checkpoints of its own a branch needs before it can do without the one that it began with."""


def add(
    session: Session,
    lease: Lease,
    *,
    step: int,
    prefix: str,
    manifest_sha256: str,
    files: Sequence[Mapping[str, Any]],
    metrics: Mapping[str, float | None],
    is_best: bool,
) -> bool:
    """The commit point of a checkpoint: its objects are in the store before this row is.

    False when this attempt's checkpoint of the step is there already: a commit whose answer was lost is repeated.
    """
    statement = insert(Checkpoint).values(
        id=new_checkpoint_id(),
        job_id=lease.job_id,
        step=step,
        attempt=lease.attempt,
        prefix=prefix,
        manifest_sha256=manifest_sha256,
        files=[dict(file) for file in files],
        metrics=dict(metrics),
        is_best=False,
    )
    added = session.scalar(statement.on_conflict_do_nothing().returning(Checkpoint.id)) is not None
    if is_best:
        mark_best(session, lease, step=step)
    _note_durable(session, lease, step)
    return added


def _note_durable(session: Session, lease: Lease, step: int) -> None:
    """The first commit beyond what was durable before also refills the crash budget: it counts failures in a row.

    A run of ten days may meet more faults than a budget allows; only one that gets nowhere is hopeless.
    """
    job = session.get_one(Job, lease.job_id, populate_existing=True)
    advanced = step > (job.furthest_durable_step or 0)
    progress = {"furthest_durable_step": step, "failures": 0} if advanced else {}
    session.execute(update(Job).where(Job.id == lease.job_id).values(durable_step=step, **progress))


def add_score(session: Session, lease: Lease, *, step: int, metrics: Mapping[str, float | None], is_best: bool) -> None:
    """What an evaluation has found of a checkpoint that was saved before it. One that has no row yet is passed over."""
    checkpoint = at_step(session, lease.job_id, step)
    if checkpoint is None:
        return
    checkpoint.metrics = {**checkpoint.metrics, **metrics}
    session.flush()
    if is_best:
        mark_best(session, lease, step=step)


def mark_best(session: Session, lease: Lease, *, step: int | None) -> None:
    """Of the job's checkpoints only those of `step` are the best; with None, none is."""
    statement = update(Checkpoint).where(Checkpoint.job_id == lease.job_id)
    session.execute(statement.values(is_best=false() if step is None else Checkpoint.step == step))


def mark_corrupt(session: Session, lease: Lease, checkpoint_id: CheckpointId) -> None:
    """Never resume from it again, and promise no more than what is left."""
    session.execute(update(Checkpoint).where(Checkpoint.id == checkpoint_id).values(corrupt_at=now()))
    whole = select(func.max(Checkpoint.step)).where(Checkpoint.job_id == lease.job_id, *_WHOLE)
    session.execute(update(Job).where(Job.id == lease.job_id).values(durable_step=whole.scalar_subquery()))


def usable(session: Session, job_id: JobId) -> Iterator[Checkpoint]:
    """Newest first, those known to be corrupt left out: the order in which a resume tries them."""
    query = select(Checkpoint).where(Checkpoint.job_id == job_id, *_WHOLE)
    yield from session.scalars(query.order_by(Checkpoint.step.desc(), Checkpoint.attempt.desc()))


def page(session: Session, job_id: JobId, *, after: CheckpointId | None, limit: int) -> Sequence[Checkpoint]:
    """Newest first; of a step that several attempts saved, the latest attempt's."""
    whole = (Checkpoint.job_id == job_id, *_WHOLE)
    latest = select(Checkpoint.step, func.max(Checkpoint.attempt)).where(*whole).group_by(Checkpoint.step)
    query = select(Checkpoint).where(*whole, tuple_(Checkpoint.step, Checkpoint.attempt).in_(latest))
    if after is not None:
        query = query.where(Checkpoint.step < select(Checkpoint.step).where(Checkpoint.id == after).scalar_subquery())
    return session.scalars(query.order_by(Checkpoint.step.desc()).limit(limit)).all()


def at_step(session: Session, job_id: JobId, step: int) -> Checkpoint | None:
    query = select(Checkpoint).where(Checkpoint.job_id == job_id, Checkpoint.step == step, *_WHOLE)
    return session.scalar(query.order_by(Checkpoint.attempt.desc()).limit(1))


def newest(session: Session, job_id: JobId, *, step: int | None = None) -> Checkpoint | None:
    """The job's newest checkpoint, or that of `step`, in whatever state; a whole one before others of its step."""
    query = select(Checkpoint).where(Checkpoint.job_id == job_id)
    if step is not None:
        query = query.where(Checkpoint.step == step)
    order = (Checkpoint.step.desc(), and_(*_WHOLE).desc(), Checkpoint.attempt.desc())
    return session.scalar(query.order_by(*order).limit(1))


def exists(session: Session, job_id: JobId, checkpoint_id: CheckpointId) -> bool:
    """Given up or not: a cursor stays good while its page is read on."""
    query = select(Checkpoint.id).where(Checkpoint.job_id == job_id, Checkpoint.id == checkpoint_id)
    return session.scalar(query) is not None


def is_whole(checkpoint: Checkpoint) -> bool:
    return checkpoint.corrupt_at is None and checkpoint.collected_at is None


def pin(session: Session, checkpoint_id: CheckpointId, *, pinned: bool = True) -> None:
    """Keep it for good, or leave it to retention again."""
    session.execute(update(Checkpoint).where(Checkpoint.id == checkpoint_id).values(pinned=pinned))


def get_to_use(session: Session, checkpoint_id: CheckpointId) -> Checkpoint | None:
    """The checkpoint if it is whole, and until the transaction ends nobody gives it up."""
    query = select(Checkpoint).where(Checkpoint.id == checkpoint_id, *_WHOLE)
    return session.scalar(query.with_for_update(key_share=True))


def collect_superseded(session: Session, job_id: JobId, *, keep: int) -> Sequence[Checkpoint]:
    """Give up what nobody will ask for: all but the `keep` newest steps, the best, the pinned, and what a branch needs.

    Their objects are the caller's to delete, after the commit.
    """
    newest = (
        select(Checkpoint.step)
        .where(Checkpoint.job_id == job_id, *_WHOLE)
        .distinct()
        .order_by(Checkpoint.step.desc())
        .limit(keep)
    )
    superseded = (
        select(Checkpoint.id)
        .where(Checkpoint.job_id == job_id, *_WHOLE)
        .where(Checkpoint.is_best.is_(False), Checkpoint.pinned.is_(False), Checkpoint.step.not_in(newest))
        .with_for_update(key_share=True)
    )
    locked = session.scalars(superseded).all()  # now no branch can begin, and the next statement sees those that have
    given_up = (
        update(Checkpoint)
        .where(Checkpoint.id.in_(locked), not_(_is_needed_by_a_branch()))
        .values(collected_at=now())
        .returning(Checkpoint)
    )
    return session.scalars(given_up).all()


def ended_parents(session: Session) -> list[tuple[JobId, int]]:
    """Jobs that are over and have kept something for their branches, the oldest first, and what each keeps beside that
    (`collect_superseded`). A job that goes on sees to its own.
    """
    branch, keep = aliased(Job), Job.spec["checkpoints"]["keep"].as_integer()
    began = select(Checkpoint.id).join(branch, branch.branched_from == Checkpoint.id)
    parents = select(Job.id, keep).where(
        Job.status.in_(TERMINAL),
        began.where(Checkpoint.job_id == Job.id, *_WHOLE).exists(),
    )
    return [(job_id, kept) for job_id, kept in session.execute(parents.order_by(Job.created_at))]


def _is_needed_by_a_branch() -> ColumnElement[bool]:
    """A job that has not ended begins from it, and may have to again: one checkpoint of its own may turn out damaged.
    One that trains the whole model reads it at every start.
    """
    own = aliased(Checkpoint)
    steps = select(func.count(own.step.distinct())).where(
        own.job_id == Job.id, own.corrupt_at.is_(None), own.collected_at.is_(None)
    )
    reads_it = or_(
        steps.scalar_subquery() < SAFE_COUNT, Job.spec["adapter"]["method"].as_string() == AdapterMethod.FULL
    )
    return select(Job.id).where(Job.branched_from == Checkpoint.id, Job.status.in_(ACTIVE), reads_it).exists()
