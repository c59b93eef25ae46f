"""A job's whole life as a state machine: the ledger on a real Postgres against a model in plain Python.

Hypothesis takes walks of many kinds: workers that come, save, leave, die and return as zombies; clients that cancel,
pause and resume at any moment; dispatchers. After every step the tables must say what the model says, and keep the
laws that need no model.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
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
from sqlalchemy import RowMapping, delete, select, update
from sqlalchemy.orm import Session

from core.activity import Activity
from core.db import checkpoints, jobs, leases
from core.db.leases import Lease, LeaseLost, Wishes
from core.db.models import Base, Checkpoint, Job, JobAttempt, JobEvent, now
from core.db.session import Sessions
from core.ids import JobId
from core.status import TRANSITIONS, JobStatus, StatusReason
from tests.factories import claim, expire, queued_job

MAX_FAILURES = 3
LONG_S = 3600.0
"""Longer than any test: leases and hints end only where a rule lets them."""
MOST_ALIVE = 2
"""Unfinished jobs at a time: few, so that each gets far."""

T = TypeVar("T")
Write = Callable[[Session, Lease], Any]


@dataclass
class ModelJob:
    """What a job should be. Written from the documentation, not from the SQL."""

    status: JobStatus = JobStatus.QUEUED
    reason: StatusReason | None = None
    attempt: int = 0
    failures: int = 0
    preemptions: int = 0
    wants_cancel: bool = False
    wants_pause: bool = False
    is_leased: bool = False
    is_hinted: bool = False
    durable: int | None = None
    furthest: int | None = None
    checkpoints: dict[tuple[int, int], bool] = field(default_factory=dict)
    """Whether it is whole, by step and attempt."""
    codes: list[str] = field(default_factory=lambda: ["queued"])
    ended: list[str | None] = field(default_factory=list)
    """How each attempt ended."""
    lease: Lease | None = None
    """The newest, whether or not it stands."""

    @property
    def is_waiting(self) -> bool:
        """For a worker to be told of it."""
        return self.status is JobStatus.QUEUED or (self.status is JobStatus.RUNNING and not self.is_leased)

    def become(self, status: JobStatus, code: str, reason: StatusReason | None = None) -> None:
        self.status, self.reason = status, reason
        self.is_leased = status is JobStatus.RUNNING
        self.codes.append(code)

    def begin(self, lease: Lease) -> None:
        self.lease = lease
        self.attempt += 1
        self.ended.append(None)
        self.become(JobStatus.RUNNING, "claimed")

    def leave(self, status: JobStatus, code: str, reason: StatusReason | None = None) -> None:
        """The attempt is over."""
        self.ended[-1] = reason or status
        self.become(status, code, reason)

    def settle(self) -> None:
        """Wishes that nobody heard come true where no worker holds the job; of the two, cancel wins."""
        if self.wants_cancel:
            self.become(JobStatus.CANCELLED, "cancelled", StatusReason.USER_CANCELLED)
        elif self.wants_pause and self.status is JobStatus.QUEUED:
            self.become(JobStatus.PAUSED, "paused", StatusReason.USER_PAUSED)

    def settle_if_queued(self) -> None:
        if self.status is JobStatus.QUEUED:
            self.settle()

    def lose_worker(self) -> None:
        self.failures += 1
        is_wanted = not self.wants_cancel and not self.wants_pause
        is_over = is_wanted and self.failures >= MAX_FAILURES
        self.leave(JobStatus.FAILED if is_over else JobStatus.QUEUED, "worker_lost", StatusReason.WORKER_LOST)
        if not is_over:
            self.settle()

    def commit(self, step: int) -> None:
        self.checkpoints.setdefault((step, self.attempt), True)
        self.durable = step
        if step > (self.furthest or 0):
            self.furthest, self.failures = step, 0


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
    return leases.renew(session, lease, ttl_s=LONG_S, activity=Activity(phase="generation", since=0.0))


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


@dataclass(frozen=True)
class Ledger:
    """All rows of one moment."""

    jobs: dict[JobId, RowMapping]
    events: list[RowMapping]
    attempts: list[RowMapping]
    checkpoints: list[RowMapping]

    @classmethod
    def read(cls, sessions: Sessions) -> "Ledger":
        stands = (Job.lease_expires_at > now()).label("is_leased")
        with sessions() as session:
            rows = session.execute(select(Job.__table__, stands)).mappings()
            return cls(
                {row["id"]: row for row in rows},
                cls._rows(session, JobEvent, JobEvent.job_id, JobEvent.seq),
                cls._rows(session, JobAttempt, JobAttempt.job_id, JobAttempt.attempt),
                cls._rows(session, Checkpoint, Checkpoint.id),
            )

    @staticmethod
    def _rows(session: Session, model: type[Base], *order: Any) -> list[RowMapping]:
        return list(session.execute(select(model.__table__).order_by(*order)).mappings())

    def of(self, rows: list[RowMapping], job_id: JobId) -> list[RowMapping]:
        return [row for row in rows if row["job_id"] == job_id]


def for_a_job(which: Callable[[ModelJob], bool], **choices: st.SearchStrategy[Any]) -> Callable[[T], T]:
    """A rule for one of the jobs that are so; no step of a walk is spent where there is none."""

    def candidates(machine: "LivesOfJobs") -> list[JobId]:
        return [job_id for job_id, job in machine.models.items() if which(job)]

    def decorate(step: T) -> T:
        one = st.runner().flatmap(lambda machine: st.sampled_from(candidates(machine)))
        return precondition(lambda machine: bool(candidates(machine)))(rule(job_id=one, **choices)(step))

    return decorate


def is_alive(job: ModelJob) -> bool:
    return not job.status.is_terminal


def is_running(job: ModelJob) -> bool:
    """On a lease that stands, or has ended unnoticed."""
    return job.status is JobStatus.RUNNING


def is_workable(job: ModelJob) -> bool:
    """Held by a worker, or free for one to take."""
    return job.is_leased or job.is_waiting


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

    @for_a_job(is_alive)
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

    @rule()
    def tell_workers(self) -> None:
        due = sorted(job_id for job_id, job in self.models.items() if job.is_waiting and not job.is_hinted)
        with self.sessions.begin() as session:
            assert list(jobs.due(session, hint_repeat_s=LONG_S)) == due
        for job_id in due:
            self.models[job_id].is_hinted = True

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

    @for_a_job(lambda job: job.is_leased)
    def die(self, job_id: JobId) -> None:
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

    @precondition(lambda self: self._fallen_leases())
    @rule(
        lease=st.runner().flatmap(lambda self: st.sampled_from(self._fallen_leases())),
        write=st.sampled_from(sorted(WRITES)),
    )
    def write_as_zombie(self, lease: Lease, write: str) -> None:
        """A worker that comes back from the dead, or did not notice that its lease ended."""
        self._is_refused(lease, WRITES[write])

    @rule()
    def ask_which_leases_stand(self) -> None:
        standing = [lease for lease in self.leases if self._stands(lease)]
        assert sorted(lease.job_id for lease in standing) == sorted(
            job_id for job_id, job in self.models.items() if job.is_leased
        ), "one for each job that is held, and no other"

    # What must hold whenever nobody writes

    @invariant()
    def the_ledger_is_right(self) -> None:
        ledger = Ledger.read(self.sessions)
        self._check_against_the_model(ledger)
        self._check_laws(ledger)

    def _check_against_the_model(self, ledger: Ledger) -> None:
        assert ledger.jobs.keys() == self.models.keys()
        for job_id, job in self.models.items():
            row, attempts = ledger.jobs[job_id], ledger.of(ledger.attempts, job_id)
            assert _facts(row) == _facts_of_model(job)
            assert [event["code"] for event in ledger.of(ledger.events, job_id)] == job.codes
            assert [attempt["attempt"] for attempt in attempts] == list(range(1, job.attempt + 1))
            assert [attempt["ended"] for attempt in attempts] == job.ended
            assert all((attempt["ended"] is None) is (attempt["ended_at"] is None) for attempt in attempts)
            saved = [(row["step"], row["attempt"]) for row in ledger.of(ledger.checkpoints, job_id)]
            assert sorted(saved) == sorted(job.checkpoints)

    def _check_laws(self, ledger: Ledger) -> None:
        for job_id, row in ledger.jobs.items():
            _check_row(row)
            _check_events(row, ledger.of(ledger.events, job_id))
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

    def _is_refused(self, lease: Lease, write: Write) -> None:
        before = Ledger.read(self.sessions)
        with pytest.raises(LeaseLost), self.sessions.begin() as session:
            write(session, lease)
        assert Ledger.read(self.sessions) == before, "and it changed nothing"

    def _fallen_leases(self) -> list[Lease]:
        holding = [job.lease for job in self.models.values() if job.is_leased]
        return [lease for lease in self.leases if lease not in holding]

    def _stands(self, lease: Lease) -> bool:
        with self.sessions() as session:
            try:
                leases.hold(session, lease)
            except LeaseLost:
                return False
        return True


@pytest.mark.timeout(900)  # the walks take half a minute; to shorten one that fails takes longer
def test_every_life_of_a_job_is_a_legal_one(sessions):
    walks = settings(max_examples=60, stateful_step_count=30, deadline=None)
    run_state_machine_as_test(lambda: LivesOfJobs(sessions), settings=walks)


def _facts(row: RowMapping) -> dict[str, Any]:
    return {
        "status": row["status"],
        "reason": row["status_reason"],
        "attempt": row["attempt"],
        "failures": row["failures"],
        "preemptions": row["preemptions"],
        "wants_cancel": row["cancel_requested_at"] is not None,
        "wants_pause": row["pause_requested_at"] is not None,
        "is_leased": bool(row["is_leased"]),
        "durable": row["durable_step"],
        "furthest": row["furthest_durable_step"],
    }


def _facts_of_model(job: ModelJob) -> dict[str, Any]:
    names = "status reason attempt failures preemptions wants_cancel wants_pause is_leased durable furthest"
    return {name: getattr(job, name) for name in names.split()}


def _check_row(row: RowMapping) -> None:
    """What holds of any job, at any time."""
    status = row["status"]
    if status is not JobStatus.RUNNING:
        assert [row[name] for name in ("stage", "activity", "lease_owner", "lease_expires_at")] == [None] * 4
    else:
        assert None not in (row["stage"], row["lease_owner"], row["lease_expires_at"])
    assert (row["finished_at"] is not None) is status.is_terminal
    assert (row["started_at"] is not None) is (row["attempt"] > 0)
    assert (row["durable_step"] or 0) <= (row["furthest_durable_step"] or 0)
    if status is JobStatus.QUEUED:
        assert row["cancel_requested_at"] is row["pause_requested_at"] is None, "a wish for a queued job is granted"
    if status is JobStatus.PAUSED:
        assert row["cancel_requested_at"] is None
        assert row["pause_requested_at"] is not None


def _check_events(row: RowMapping, events: list[RowMapping]) -> None:
    """`seq` has no gap, and the events alone tell the job's way: legal changes, and one end at most."""
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert row["next_event_seq"] == len(events) + 1
    numbers = [event["attempt"] for event in events]
    assert numbers == sorted(numbers)
    assert [event["attempt"] for event in events if event["code"] == "claimed"] == list(range(1, row["attempt"] + 1))
    status = JobStatus.QUEUED
    for change in (event["data"] for event in events if "to" in event["data"]):
        assert change["from"] == status
        assert JobStatus(change["to"]) in TRANSITIONS[status]
        status = JobStatus(change["to"])
    assert status is row["status"]
    ends = [event for event in events if "to" in event["data"] and JobStatus(event["data"]["to"]).is_terminal]
    assert len(ends) == int(status.is_terminal)
