"""Whether something in the store is nobody's, as far as the ledger can say for good.

Each answer is one statement, so it sees the ledger at one moment; and what is an orphan stays one. A checkpoint's row
can only come from the attempt that holds the job, and attempts are raised, never given again; artifacts only come
before a job is over, and an export's file only from the attempt that holds the export. A job or an attempt that this
ledger does not know has no orphans: it may be another ledger's.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from sqlalchemy import ARRAY, ColumnElement, Text, and_, any_, func, literal, not_, or_, select
from sqlalchemy.orm import Session

from core.db import exports
from core.db.models import Artifact, Checkpoint, Export, File, Job, now
from core.db.session import Sessions
from core.ids import FileId, JobId
from core.keys import ArtifactsPlace, CheckpointPlace, ExportPlace, Place
from core.status import TERMINAL, JobStatus

_LOCK = (0x706F6469, 1)
"""Of pg_try_advisory_lock(int, int), whose names are apart from those of the one-number form."""


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
        Job.status.in_(TERMINAL),
        not_(published.exists()),
    )


def is_orphaned_export(session: Session, place: ExportPlace) -> bool:
    """A file that is not shown, of an attempt that can show nothing any more."""
    shown = select(Artifact.name).where(Artifact.job_id == place.job_id, Artifact.key == place.key)
    mine = select(Export.job_id).where(Export.job_id == place.job_id, Export.target == place.target)
    known = mine.where(Export.attempt >= place.attempt)
    held = mine.where(*exports.held_by(place.attempt))
    return _is_any(session, Job.id == place.job_id, known.exists(), not_(shown.exists()), not_(held.exists()))


def is_orphaned_file(session: Session, file_id: FileId) -> bool:
    """No row, or a deleted one. The row comes after the object: ask only about objects that are old."""
    row = select(File.id).where(File.id == file_id, File.deleted_at.is_(None))
    return session.scalar(row) is None


def unknown(session: Session, places: Collection[Place]) -> set[Place]:
    """Those of jobs and attempts that this ledger never had: a row comes before its objects, and is never deleted."""
    newest = _newest_attempts(session, sorted({place.job_id for place in places}))
    return {place for place in places if place.attempt > newest.get(_holder(place), 0)}


def _holder(place: Place) -> tuple[JobId, str | None]:
    """Whose attempts the place counts by: the job's, or those of its export to a target."""
    return place.job_id, place.target if isinstance(place, ExportPlace) else None


def _newest_attempts(session: Session, job_ids: Sequence[JobId]) -> dict[tuple[JobId, str | None], int]:
    asked = any_(literal(job_ids, ARRAY(Text)))
    of_jobs = session.execute(select(Job.id, Job.attempt).where(Job.id == asked))
    of_exports = session.execute(select(Export.job_id, Export.target, Export.attempt).where(Export.job_id == asked))
    newest: dict[tuple[JobId, str | None], int] = {(row.id, None): row.attempt for row in of_jobs}
    return newest | {(row.job_id, row.target.value): row.attempt for row in of_exports}


def _is_any(session: Session, *conditions: ColumnElement[bool]) -> bool:
    return session.scalar(select(Job.id).where(*conditions)) is not None
