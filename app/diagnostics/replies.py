"""What a job waits for, and what is worth knowing about it, as clients see it."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from app.jobs.replies import Reply
from core.status import JobStatus, Stage, StatusReason


class WaitsFor(StrEnum):
    WORKER = "worker"
    TRAINER = "trainer"
    """The step, evaluation or save that it is making."""
    LEDGER = "ledger"
    STORE = "store"
    PERSON = "person"
    NOTHING = "nothing"


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class Now(Reply):
    waiting_for: WaitsFor
    summary: str = Field(description="The same in one or two sentences, with what to do where something is to be done.")
    since: int = Field(description="Since when it waits for this, in unix seconds.")
    for_s: float


class Queue(Reply):
    """Of a queued job."""

    jobs_ahead: int = Field(description="Queued jobs, of everybody, that workers are told of first.")
    last_hinted_at: int | None = Field(description="When workers were last told; that is repeated until one takes it.")


class ActivityNow(Reply):
    """What the run does, as its worker said when it last renewed its lease; times by the worker's clock."""

    phase: str
    step: int | None
    since: int
    for_s: float
    longest_s: float | None = Field(description="How long the phase took at most before, in this attempt.")
    deadline_s: float | None = Field(description="After this long the watchdog ends the trainer.")
    waiting_for: str | None = Field(description="The part that does not answer: `ledger` or `store`.")


class LeaseNow(Reply):
    stands: bool = Field(description="False: its worker fell silent, and the next free one takes the job over.")
    last_good_at: int = Field(description="When the worker last proved that it is alive; see PODIUM_LEASE_TTL_S.")
    expires_at: int


class RunNow(Reply):
    """Of a running job."""

    attempt: int
    stage: Stage | None
    activity: ActivityNow | None = Field(description="Null until the lease is renewed for the first time.")
    lease: LeaseNow


class StepAge(Reply):
    step: int
    at: int
    age_s: float


class Pause(Reply):
    """Of a paused job, or one that is asked to pause."""

    requested_at: int | None
    reason: StatusReason | None
    safe_step: int | None = Field(description="From which it goes on; null: from the start.")
    what_to_do: str


class Finding(Reply):
    """Something about the job that a person should know, made from facts of the ledger."""

    code: str
    severity: Severity
    message: str
    fix: str
    evidence: dict[str, Any] = Field(description="The numbers behind it.")
    first_seen: int
    last_seen: int
    count: int


class Diagnostics(Reply):
    object: Literal["fine_tuning.job.diagnostics"] = "fine_tuning.job.diagnostics"
    job_id: str
    at: int = Field(description="When this was true, by the database's clock.")
    status: JobStatus
    status_reason: StatusReason | None
    now: Now
    queue: Queue | None
    run: RunNow | None
    pause: Pause | None
    newest_step: StepAge | None
    durable_step: StepAge | None = Field(description="What a lost worker cannot take away.")
    steps_at_risk: int = Field(description="Steps beyond the durable one: a lost worker costs these.")
    findings: list[Finding] = Field(description="The gravest first.")
