"""What the harness itself reads of the ledger while a run goes on: straight, and patient with a server that is away."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from bench._chaos.clients import METADATA_KEY
from core.db import checkpoints
from core.db.models import Checkpoint, Job
from core.db.session import LEDGER_AWAY, Sessions
from core.ids import JobId
from core.status import JobStatus

ALL = 1_000_000
"""More events than any job of a chaos run has."""


@dataclass(frozen=True, slots=True)
class JobState:
    id: JobId
    number: int
    status: JobStatus
    attempt: int


class Ledger:
    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._jobs: list[JobState] = []

    def jobs(self) -> list[JobState]:
        """Every job; what was seen last, while the ledger is away."""
        query = select(Job.id, Job.metadata_, Job.status, Job.attempt)
        try:
            with self.sessions() as session:
                rows = session.execute(query).all()
        except LEDGER_AWAY:
            return self._jobs
        self._jobs = [JobState(id_, _number(metadata), status, attempt) for id_, metadata, status, attempt in rows]
        return self._jobs

    def newest_checkpoint(self, job_id: JobId) -> Checkpoint | None:
        """The one that the next resume would load."""
        try:
            with self.sessions() as session:
                return next(checkpoints.usable(session, job_id), None)
        except LEDGER_AWAY:
            return None

    def count_checkpoints(self) -> int:
        with self.sessions() as session:
            return session.scalar(select(func.count()).select_from(Checkpoint)) or 0


def all_jobs(session: Session) -> dict[JobId, Job]:
    return {job.id: job for job in session.scalars(select(Job).order_by(Job.id))}


def number_of(job: Job) -> int:
    return _number(job.metadata_)


def _number(metadata: Mapping[str, str]) -> int:
    return int(metadata[METADATA_KEY])
