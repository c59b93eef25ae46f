"""What a job should be: a model in plain Python, written from the documentation and not from the SQL."""

from dataclasses import dataclass, field
from typing import Any

from core.db.leases import Lease
from core.status import JobStatus, StatusReason

MAX_FAILURES = 2


@dataclass
class ModelJob:
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
    checkpoints: set[tuple[int, int]] = field(default_factory=set)
    """Step and attempt of each."""
    codes: list[str] = field(default_factory=lambda: ["queued"])
    ended: list[str | None] = field(default_factory=list)
    """How each attempt ended."""
    lease: Lease | None = None
    """The newest, whether or not it stands."""

    def facts(self) -> dict[str, Any]:
        """As `laws.facts_of` tells them of a row."""
        return {
            "status": self.status,
            "reason": self.reason,
            "attempt": self.attempt,
            "failures": self.failures,
            "preemptions": self.preemptions,
            "wants_cancel": self.wants_cancel,
            "wants_pause": self.wants_pause,
            "is_leased": self.is_leased,
            "durable_step": self.durable,
            "furthest_durable_step": self.furthest,
        }

    @property
    def is_waiting(self) -> bool:
        """For a worker to take it."""
        return self.status is JobStatus.QUEUED or (self.status is JobStatus.RUNNING and not self.is_leased)

    @property
    def is_due(self) -> bool:
        """For a worker to be told of it."""
        return self.is_waiting and not self.is_hinted

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
        self.checkpoints.add((step, self.attempt))
        self.durable = step
        if step > (self.furthest or 0):
            self.furthest, self.failures = step, 0


def is_alive(job: ModelJob) -> bool:
    return not job.status.is_terminal


def is_running(job: ModelJob) -> bool:
    """On a lease that stands, or has ended unnoticed."""
    return job.status is JobStatus.RUNNING


def is_workable(job: ModelJob) -> bool:
    """Held by a worker, or free for one to take."""
    return job.is_leased or job.is_waiting
