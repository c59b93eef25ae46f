"""What a job waits for, and what is worth knowing about it, as clients see it."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.jobs.replies import Reply
from core.status import JobStatus, Stage, StatusReason

EXAMPLE: JsonDict = {
    "object": "fine_tuning.job.diagnostics",
    "job_id": "ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d",
    "at": 1796000000,
    "status": "running",
    "status_reason": None,
    "now": {
        "waiting_for": "trainer",
        "summary": "Phase generation of step 58 for 12 s (at most 30 s before, the watchdog acts after 5 min 0 s).",
        "since": 1795999988,
        "for_s": 12.0,
    },
    "queue": None,
    "run": {
        "attempt": 2,
        "stage": "training",
        "activity": {
            "phase": "generation",
            "step": 58,
            "since": 1795999988,
            "for_s": 12.0,
            "longest_s": 30.0,
            "deadline_s": 300.0,
            "waiting_for": None,
        },
        "lease": {"stands": True, "last_good_at": 1795999996, "expires_at": 1796000056},
    },
    "pause": None,
    "newest_step": {"step": 57, "at": 1795999985, "age_s": 15.0},
    "durable_step": {"step": 50, "at": 1795999700, "age_s": 300.0},
    "steps_at_risk": 7,
    "findings": [
        {
            "code": "work_redone",
            "severity": "warning",
            "message": "9 of 66 steps (14%) were trained more than once, because a worker took them with it.",
            "fix": "Save more often: lower checkpoints.every_steps or checkpoints.every_minutes.",
            "evidence": {"redone_steps": 9, "trained_steps": 66, "share": 0.1364},
            "first_seen": 1795998000,
            "last_seen": 1795998000,
            "count": 1,
        }
    ],
    "learning": [
        {
            "code": "truncated",
            "severity": "warning",
            "message": "41% of the completions were cut at 160 tokens before they ended.",
            "fix": "Raise max_completion_length (160).",
            "try_next": "A penalty that sets in before the limit (the built-in reward `overlong`).",
            "since_step": 31,
            "links": {
                "metrics": "/v1/fine_tuning/jobs/ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d/metrics?from_step=31",
                "rollouts": "/v1/fine_tuning/jobs/ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d/rollouts?step=31",
            },
            "evidence": {"truncated_share": 0.41, "max_completion_length": 160},
        }
    ],
}


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


class WaitingNow(Reply):
    waiting_for: WaitsFor
    summary: str = Field(description="The same in one or two sentences, with what to do where something is to be done.")
    since: int = Field(description="Since when it waits for this, in unix seconds.")
    for_s: float


class QueuePlace(Reply):
    """Of a queued job."""

    jobs_ahead: int = Field(description="Queued jobs, of everybody, that workers are told of first.")
    last_hinted_at: int | None = Field(
        None, description="When workers were last told; that is repeated until one takes it."
    )


class ActivityNow(Reply):
    """What the run does, as its worker said when it last renewed its lease; times by the database's clock, as all."""

    phase: str
    step: int | None = None
    since: int
    for_s: float
    longest_s: float | None = Field(None, description="How long the phase took at most before, in this attempt.")
    deadline_s: float | None = Field(None, description="After this long the watchdog ends the trainer.")
    waiting_for: str | None = Field(None, description="The part that does not answer: `ledger` or `store`.")


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


class PauseNow(Reply):
    """Of a paused job, or one that is asked to pause."""

    requested_at: int | None = None
    reason: StatusReason | None = None
    safe_step: int | None = Field(None, description="From which it goes on; null: from the start.")
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


class StepLinks(Reply):
    """Where to look at the step at which something begins to show."""

    metrics: str = Field(description="Path of the numbers from that step on.")
    rollouts: str = Field(description="Path of what was generated at that step, as far as it is on record.")


class LearningFinding(Reply):
    """Why the run does not learn, or will not for long: a rule over its own numbers."""

    code: str
    subject: str | None = Field(None, description="The watched field that it is about, where it is about one.")
    severity: Severity
    message: str
    fix: str
    try_next: str = Field(description="What would teach this model more.")
    since_step: int | None = Field(None, description="Where it begins to show; null: it holds for the whole run.")
    links: StepLinks | None = Field(None, description="Of `since_step`, where there is one.")
    evidence: dict[str, Any] = Field(description="The numbers behind it.")


class Diagnostics(Reply):
    model_config = ConfigDict(frozen=True, json_schema_extra={"examples": [EXAMPLE]})

    object: Literal["fine_tuning.job.diagnostics"] = "fine_tuning.job.diagnostics"
    job_id: str
    at: int = Field(description="When this was true, by the database's clock.")
    status: JobStatus
    status_reason: StatusReason | None = None
    now: WaitingNow
    queue: QueuePlace | None = None
    run: RunNow | None = None
    pause: PauseNow | None = None
    newest_step: StepAge | None = None
    durable_step: StepAge | None = Field(None, description="What a lost worker cannot take away.")
    steps_at_risk: int = Field(description="Steps beyond the durable one: a lost worker costs these.")
    findings: list[Finding] = Field(description="About the job and its machines; the gravest first.")
    learning: list[LearningFinding] = Field(description="About what the model learns; the gravest first.")
