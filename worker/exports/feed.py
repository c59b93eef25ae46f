"""What an exporter reads of its job: the steps that are committed, and whether more will come."""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy.orm import Session

from core.bundle import RESULTS
from core.db import exports, progress
from core.db.exports import Claim
from core.db.models import Artifact, EvaluationRecord, Job, StepMetrics
from core.db.session import Sessions
from core.integrations import Integration
from core.results import JobResults
from core.status import JobStatus
from core.storage.store import ObjectStore
from worker.exports.facts import conclusion_of, points_of, run_facts
from worker.exports.target import NONE_YET, Conclusion, Point, RunFacts

PAGE = 500
"""Steps read at once."""


@dataclass(frozen=True, slots=True)
class News:
    points: Sequence[Point]
    has_more: bool
    """Of what is in the ledger now."""
    is_running: bool
    conclusion: Conclusion | None
    """Once the job is over; then these points, and those that come after them, are the last."""


class Feed:
    """The job of one claim. Reads, and `works`, renew the lease; raises `ClaimLost` when another exporter has it."""

    def __init__(self, sessions: Sessions, store: ObjectStore, claim: Claim, *, lease_s: float) -> None:
        self._sessions = sessions
        self._store = store
        self._claim = claim
        self._lease_s = lease_s

    def begin(self) -> tuple[Integration, RunFacts | None]:
        """No facts: the job ended before it began."""
        with self._sessions.begin() as session:
            exports.renew(session, self._claim, ttl_s=self._lease_s)
            job = session.get_one(Job, self._claim.job_id)
            facts = None if job.started_at is None else run_facts(job)
            return exports.integration(session, self._claim), facts

    def after(self, step: int, *, page: int = PAGE) -> News:
        """What comes after the step, without what may yet change: the newest step of a job that is not over.

        An evaluation at that step would come after it, and before the next one. Steps beyond where the job is are
        those of an earlier attempt, which will be done again.
        """
        with self._sessions.begin() as session:
            exports.renew(session, self._claim, ttl_s=self._lease_s)
            job = session.get_one(Job, self._claim.job_id, populate_existing=True)
            is_over = job.status.is_terminal
            rows = progress.steps(session, job.id, from_step=step + 1, to_step=job.step, limit=page + 1)
            has_more = len(rows) > page
            steps = rows[:page] if has_more or is_over else rows[:-1]
            evaluations = self._evaluations(session, job, step, steps, is_whole=is_over and not has_more)
            results = progress.artifact(session, job.id, RESULTS) if is_over and not has_more else None
        return News(
            points=points_of(steps, evaluations),
            has_more=has_more,
            is_running=job.status is JobStatus.RUNNING,
            conclusion=self._conclusion(job, results) if is_over and not has_more else None,
        )

    def everything(self) -> News:
        """All points from the baseline on, as `after` gives them."""
        points: list[Point] = []
        news = self.after(NONE_YET)
        while news.has_more:
            points += news.points
            news = self.after(points[-1].step)
        return News([*points, *news.points], has_more=False, is_running=news.is_running, conclusion=news.conclusion)

    def is_running(self) -> bool:
        """Whether the job is at it, and has not ended: nothing else of it is read."""
        with self._sessions.begin() as session:
            exports.renew(session, self._claim, ttl_s=self._lease_s)
            return session.get_one(Job, self._claim.job_id).status is JobStatus.RUNNING

    def renew(self) -> None:
        """Between two calls that nothing is read between."""
        with self._sessions.begin() as session:
            exports.renew(session, self._claim, ttl_s=self._lease_s)

    def works(self, where: str) -> None:
        with self._sessions.begin() as session:
            exports.renew(session, self._claim, ttl_s=self._lease_s)
            exports.works(session, self._claim, where=where)

    def finish(self, where: str, last_step: int) -> None:
        with self._sessions.begin() as session:
            exports.finish(session, self._claim, where=where, last_step=max(0, last_step))

    def end_without(self) -> None:
        with self._sessions.begin() as session:
            exports.end_without(session, self._claim)

    def leave(self) -> None:
        with self._sessions.begin() as session:
            exports.leave(session, self._claim)

    def _evaluations(
        self, session: Session, job: Job, after_step: int, steps: Sequence[StepMetrics], *, is_whole: bool
    ) -> Sequence[EvaluationRecord]:
        """Those of the steps. At the end also those without one: a job of which only the baseline was taken."""
        if not steps and not is_whole:
            return ()
        last = job.step if is_whole else steps[-1].step
        return progress.evaluations(session, job.id, from_step=after_step + 1, to_step=last)

    def _conclusion(self, job: Job, results: Artifact | None) -> Conclusion:
        assert job.finished_at is not None, "it is over"
        return conclusion_of(job, None if results is None else self._read(results), at=job.finished_at)

    def _read(self, results: Artifact) -> JobResults | None:
        """None for a document of another version."""
        try:
            return JobResults.model_validate_json(self._store.get_bytes(results.key))
        except ValidationError:
            return None
