"""A job's whole life as a state machine: the ledger on a real Postgres against a model in plain Python.

Hypothesis takes walks of many kinds: workers that come, save, leave, die and return as zombies; clients that cancel,
pause and resume at any moment; dispatchers. After every step the tables must say what the model says, and keep the
laws that need no model.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import RowMapping, delete, update
from sqlalchemy.orm import Session

from core.activity import Activity
from core.db import checkpoints, jobs, leases
from core.db.leases import Lease, LeaseLost, Wishes
from core.db.models import Base, Job
from core.db.session import Sessions
from core.ids import JobId
from core.status import JobStatus, StatusReason
from tests.factories import claim, expire, queued_job
from tests.ledger.job_model import MAX_FAILURES, ModelJob, is_alive, is_running, is_workable
from tests.ledger.laws import Ledger, check_events, check_row, facts_of

LONG_S = 3600.0
"""Longer than any test: leases and hints end only where a rule lets them."""
MOST_ALIVE = 2
"""Unfinished jobs at a time: few, so that each gets far."""

T = TypeVar("T")
Write = Callable[[Session, Lease], Any]


def save(session: Session, lease: Lease, step: int = 1) -> bool:
    leases.hold(session, lease)
    return checkpoints.add(
        session,
        lease,
        step=step,
        prefix=f"checkpoints/{step}-a{lease.attempt}/",
        manifest_sha256="0" * 64,
        files=[],
        metrics={},
        is_best=False,
    )


def stay(session: Session, lease: Lease) -> Wishes:
    return leases.renew(session, lease, ttl_s=LONG_S, activity=Activity(phase="generation", for_s=0.0))


def give_back(session: Session, lease: Lease, reason: StatusReason = StatusReason.PREEMPTED, **values: Any) -> None:
    leases.release(session, lease, reason=reason, message="Back to the queue.", **values)


def leave_paused(session: Session, lease: Lease, reason: StatusReason = StatusReason.USER_PAUSED) -> None:
    leases.pause(session, lease, reason=reason, message="Paused.", data={})


def end(session: Session, lease: Lease, status: JobStatus = JobStatus.SUCCEEDED) -> None:
    leases.finish(session, lease, status, message="Over.")


WRITES: dict[str, Write] = {
    "hold": leases.hold,
    "stay": stay,
    "save": save,
    "give_back": give_back,
    "leave_paused": leave_paused,
    "end": end,
}


def for_a_job(which: Callable[[ModelJob], bool], **choices: st.SearchStrategy[Any]) -> Callable[[T], T]:
    """A rule for one of the jobs that are so; no step of a walk is spent where there is none."""

    def candidates(machine: "LivesOfJobs") -> list[JobId]:
        return [job_id for job_id, job in machine.models.items() if which(job)]

    def decorate(step: T) -> T:
        one = st.runner().flatmap(lambda machine: st.sampled_from(candidates(machine)))
        return precondition(lambda machine: bool(candidates(machine)))(rule(job_id=one, **choices)(step))

    return decorate


class LivesOfJobs(RuleBasedStateMachine):
    def __init__(self, sessions: Sessions) -> None:
        super().__init__()
        self.sessions = sessions
        self.models: dict[JobId, ModelJob] = {}
        self.leases: list[Lease] = []
        self.first_starts: dict[JobId, datetime] = {}
        self.last_words: dict[JobId, RowMapping] = {}

    def teardown(self) -> None:
        with self.sessions.begin() as session:
            for table in reversed(Base.metadata.sorted_tables):
                session.execute(delete(table))

    # What clients do

    @initialize()
    def submit_the_first(self) -> None:
        for _ in range(MOST_ALIVE):
            self.submit()

    @precondition(lambda self: sum(map(is_alive, self.models.values())) < MOST_ALIVE)
    @rule()
    def submit(self) -> None:
        self.models[queued_job(self.sessions)] = ModelJob()

    @for_a_job(lambda job: is_alive(job) and job.attempt > 0)
    def request_cancel(self, job_id: JobId) -> None:
        job = self.models[job_id]
        assert self._ask(jobs.request_cancel, job_id)
        if is_running(job) and not job.wants_cancel:
            job.codes.append("cancel_requested")
        job.wants_cancel = True
        if not is_running(job):
            job.settle()

    @for_a_job(is_alive)
    def request_pause(self, job_id: JobId) -> None:
        job = self.models[job_id]
        assert self._ask(jobs.request_pause, job_id)
        if is_running(job) and not job.wants_pause:
            job.codes.append("pause_requested")
        job.wants_pause = True
        job.settle_if_queued()

    @for_a_job(lambda job: job.status is JobStatus.PAUSED)
    def resume(self, job_id: JobId) -> None:
        job = self.models[job_id]
        assert self._ask(jobs.resume, job_id)
        job.wants_pause = job.is_hinted = False
        job.become(JobStatus.QUEUED, "resume_requested")

    @for_a_job(lambda job: is_running(job) and job.wants_pause)
    def withdraw_pause(self, job_id: JobId) -> None:
        job = self.models[job_id]
        assert self._ask(jobs.resume, job_id)
        job.wants_pause = False
        job.codes.append("pause_withdrawn")

    @for_a_job(lambda job: not job.is_waiting)
    def ask_in_vain(self, job_id: JobId) -> None:
        """The invariants then see that nothing has changed."""
        job = self.models[job_id]
        assert claim(self.sessions, job_id, max_failures=MAX_FAILURES) is None
        if job.status.is_terminal or (is_running(job) and not job.wants_pause):
            assert not self._ask(jobs.resume, job_id)
        if job.status.is_terminal:
            assert not self._ask(jobs.request_pause, job_id)
            assert not self._ask(jobs.request_cancel, job_id)

    # What dispatchers do

    @for_a_job(lambda job: job.is_due)
    def tell_workers(self, job_id: JobId) -> None:
        with self.sessions.begin() as session:
            assert job_id in jobs.due(session, hint_repeat_s=LONG_S)
        for job in self.models.values():
            job.is_hinted = job.is_hinted or job.is_due

    @precondition(lambda self: any(job.is_waiting and job.is_hinted for job in self.models.values()))
    @rule()
    def let_hints_grow_old(self) -> None:
        waiting = {job_id: job for job_id, job in self.models.items() if job.is_waiting}
        with self.sessions.begin() as session:
            long_ago = Job.hinted_at - timedelta(seconds=2 * LONG_S)
            session.execute(update(Job).where(Job.id.in_(waiting)).values(hinted_at=long_ago))
        for job in waiting.values():
            job.is_hinted = False

    # What workers do

    @for_a_job(lambda job: job.is_waiting)
    def claim(self, job_id: JobId) -> None:
        job = self.models[job_id]
        lease = claim(self.sessions, job_id, ttl_s=LONG_S, max_failures=MAX_FAILURES)
        if is_running(job):
            job.lose_worker()
        if job.status is not JobStatus.QUEUED:
            assert lease is None
            return
        assert lease is not None
        assert (lease.job_id, lease.attempt) == (job_id, job.attempt + 1)
        job.begin(lease)
        self.leases.append(lease)

    @for_a_job(is_workable, unheard=st.sampled_from(["nothing", "cancel", "pause"]))
    def die(self, job_id: JobId, unheard: str) -> None:
        if not self._as_holder(job_id, leases.hold):
            return
        if unheard == "cancel":
            self.request_cancel(job_id)
        if unheard == "pause":
            self.request_pause(job_id)
        expire(self.sessions, job_id)
        self.models[job_id].is_leased = False

    @for_a_job(is_workable)
    def renew(self, job_id: JobId) -> None:
        job = self.models[job_id]

        def write(session: Session, lease: Lease) -> None:
            assert stay(session, lease) == Wishes(cancel=job.wants_cancel, pause=job.wants_pause)

        self._as_holder(job_id, write)

    @for_a_job(is_workable, step=st.integers(1, 6))
    def commit_checkpoint(self, job_id: JobId, step: int) -> None:
        job = self.models[job_id]

        def write(session: Session, lease: Lease) -> None:
            assert save(session, lease, step) is ((step, job.attempt) not in job.checkpoints)

        if self._as_holder(job_id, write):
            job.commit(step)

    @for_a_job(is_workable)
    def release_preempted(self, job_id: JobId) -> None:
        job = self.models[job_id]

        def write(session: Session, lease: Lease) -> None:
            give_back(session, lease, StatusReason.PREEMPTED, preemptions=job.preemptions + 1, hinted_at=None)

        if self._as_holder(job_id, write):
            job.preemptions += 1
            job.is_hinted = False
            job.leave(JobStatus.QUEUED, "preempted", StatusReason.PREEMPTED)
            job.settle_if_queued()

    @for_a_job(is_workable)
    def release_crashed(self, job_id: JobId) -> None:
        job = self.models[job_id]

        def write(session: Session, lease: Lease) -> None:
            give_back(session, lease, StatusReason.TRAINER_CRASHED, failures=job.failures + 1)

        if self._as_holder(job_id, write):
            job.failures += 1
            job.leave(JobStatus.QUEUED, "trainer_crashed", StatusReason.TRAINER_CRASHED)
            job.settle_if_queued()

    @for_a_job(is_workable, reason=st.sampled_from([StatusReason.USER_PAUSED, StatusReason.DISK_FULL]))
    def pause_under_lease(self, job_id: JobId, reason: StatusReason) -> None:
        job = self.models[job_id]
        if self._as_holder(job_id, partial(leave_paused, reason=reason)):
            job.wants_pause = True
            job.leave(JobStatus.PAUSED, "paused", reason)
            if job.wants_cancel:
                job.settle()

    @for_a_job(is_workable, status=st.sampled_from([status for status in JobStatus if status.is_terminal]))
    def finish(self, job_id: JobId, status: JobStatus) -> None:
        job = self.models[job_id]
        if self._as_holder(job_id, partial(end, status=status)):
            job.leave(status, status)

    @precondition(lambda self: self._fallen())
    @rule(write=st.sampled_from(sorted(WRITES)))
    def write_as_zombies(self, write: str) -> None:
        """Every worker that ever lost its job comes back from the dead: at most one lease of a job stands."""
        with self.sessions() as session:
            before = Ledger.read(session)
        for lease in self._fallen():
            with pytest.raises(LeaseLost), self.sessions.begin() as session:
                WRITES[write](session, lease)
        with self.sessions() as session:
            assert Ledger.read(session) == before

    # What must hold whenever nobody writes

    @invariant()
    def the_ledger_is_right(self) -> None:
        with self.sessions() as session:
            ledger = Ledger.read(session)
            due = jobs.due(session, hint_repeat_s=LONG_S)  # rolled back: nobody is told
        assert list(due) == sorted(job_id for job_id, job in self.models.items() if job.is_due)
        self._check_against_the_model(ledger)
        self._check_laws(ledger)

    def _check_against_the_model(self, ledger: Ledger) -> None:
        assert ledger.jobs.keys() == self.models.keys()
        for job_id, job in self.models.items():
            row, attempts = ledger.jobs[job_id], ledger.of(ledger.attempts, job_id)
            assert facts_of(row) == job.facts()
            assert [event["code"] for event in ledger.of(ledger.events, job_id)] == job.codes
            assert [attempt["attempt"] for attempt in attempts] == list(range(1, job.attempt + 1))
            assert [attempt["ended"] for attempt in attempts] == job.ended
            assert all((attempt["ended"] is None) is (attempt["ended_at"] is None) for attempt in attempts)
            saved = [(row["step"], row["attempt"]) for row in ledger.of(ledger.checkpoints, job_id)]
            assert sorted(saved) == sorted(job.checkpoints)

    def _check_laws(self, ledger: Ledger) -> None:
        for job_id, row in ledger.jobs.items():
            check_row(row)
            check_events(row, ledger.of(ledger.events, job_id))
            if row["started_at"] is not None:
                assert self.first_starts.setdefault(job_id, row["started_at"]) == row["started_at"]
            if row["status"].is_terminal:
                assert self.last_words.setdefault(job_id, row) == row, "a job that is over changes no more"

    def _ask(self, request: Callable[[Session, Job], bool], job_id: JobId) -> bool:
        with self.sessions.begin() as session:
            job = jobs.get(session, job_id)
            assert job is not None
            return request(session, job)

    def _as_holder(self, job_id: JobId, write: Write) -> bool:
        """Whether it was written: by the job's worker, or by one that takes it first, if that can be."""
        job = self.models[job_id]
        if job.is_waiting:
            self.claim(job_id)
        if not job.is_leased:
            return False
        assert job.lease is not None
        with self.sessions.begin() as session:
            write(session, job.lease)
        return True

    def _fallen(self) -> list[Lease]:
        """All leases that were ever granted, less those that stand."""
        holding = [job.lease for job in self.models.values() if job.is_leased]
        return [lease for lease in self.leases if lease not in holding]


@pytest.mark.timeout(900)  # the walks take half a minute; to shorten one that fails takes longer
def test_every_life_of_a_job_is_a_legal_one(sessions):
    walks = settings(max_examples=40, stateful_step_count=30)
    run_state_machine_as_test(lambda: LivesOfJobs(sessions), settings=walks)
