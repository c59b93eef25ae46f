"""Whether something in the store is nobody's, as far as the ledger can say for good.

Each answer is one statement, so it sees the ledger at one moment; and what is an orphan stays one. A checkpoint's row
can only come from the attempt that holds the job, and attempts are raised, never given again; artifacts only come
before a job is over. A job or an attempt that this ledger does not know has no orphans: it may be another ledger's.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import ARRAY, ColumnElement, Text, and_, any_, func, literal, not_, or_, select
from sqlalchemy.orm import Session

from core.db.models import Artifact, Checkpoint, File, Job, now
from core.db.session import Sessions
from core.ids import FileId
from core.keys import ArtifactsPlace, CheckpointPlace, Place
from core.status import JobStatus

_LOCK = (0x706F6469, 1)
"""Of pg_try_advisory_lock(int, int), whose names are apart from those of the one-number form."""
_OVER = [status for status in JobStatus if status.is_terminal]


@contextmanager
def only_collector(sessions: Sessions) -> Iterator[bool]:
    """Whether this process is the only one in this block. Holds a connection, and no transaction, meanwhile.

    A collector whose connection broke may meet a second one: that costs work done twice, and no harm.
    """
    with sessions() as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        alone = bool(session.scalar(select(func.pg_try_advisory_lock(*_LOCK))))
        try:
            yield alone
        finally:
            if alone:
                session.scalar(select(func.pg_advisory_unlock(*_LOCK)))


def is_orphaned_checkpoint(session: Session, place: CheckpointPlace, *, evidence_s: float) -> bool:
    """Given up, or without a row that could still come from the attempt that holds the job.

    A damaged one stays to be looked at for `evidence_s`, a pinned one always.
    """
    row = select(Checkpoint.id).where(
        Checkpoint.job_id == place.job_id, Checkpoint.step == place.step, Checkpoint.attempt == place.attempt
    )
    kept = row.where(
        Checkpoint.collected_at.is_(None),
        or_(
            Checkpoint.corrupt_at.is_(None),
            Checkpoint.pinned,
            Checkpoint.corrupt_at > now() - timedelta(seconds=evidence_s),
        ),
    )
    uploading = and_(Job.status == JobStatus.RUNNING, Job.attempt == place.attempt, not_(row.exists()))
    return _is_any(session, Job.id == place.job_id, Job.attempt >= place.attempt, not_(uploading), not_(kept.exists()))


def is_orphaned_publication(session: Session, place: ArtifactsPlace) -> bool:
    """Artifacts of an attempt that has published nothing, of a job that is over."""
    published = select(Artifact.name).where(Artifact.job_id == place.job_id, Artifact.attempt == place.attempt)
    return _is_any(
        session,
        Job.id == place.job_id,
        Job.attempt >= place.attempt,
        Job.status.in_(_OVER),
        not_(published.exists()),
    )


def is_orphaned_file(session: Session, file_id: FileId) -> bool:
    """No row, or a deleted one. The row comes after the object: ask only about objects that are old."""
    row = select(File.id).where(File.id == file_id, File.deleted_at.is_(None))
    return session.scalar(row) is None


def unknown(session: Session, places: Collection[Place]) -> set[Place]:
    """Those of jobs and attempts that this ledger never had: a row comes before its objects, and is never deleted."""
    job_ids = sorted({place.job_id for place in places})
    query = select(Job.id, Job.attempt).where(Job.id == any_(literal(job_ids, ARRAY(Text))))
    newest = {row.id: row.attempt for row in session.execute(query)}
    return {place for place in places if place.attempt > newest.get(place.job_id, 0)}


def _is_any(session: Session, *conditions: ColumnElement[bool]) -> bool:
    return session.scalar(select(Job.id).where(*conditions)) is not None
