"""Signal probes as clients write and see them: the body of a job, and beside it how much to sample."""

from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from app.jobs.replies import JobError, Reply, unix, unix_or_none
from app.jobs.schemas import EXAMPLE, JobCreate
from core.db.models import Job, SignalProbe
from core.signal_report import DEFAULT_PROMPTS, MOST_PROMPTS, SignalReport
from core.spec import JobSpec
from core.status import JobStatus, Stage, StatusReason

_EXAMPLE: JsonDict = {**EXAMPLE, "prompts": 32, "samples": 8}


class SignalProbeCreate(JobCreate):
    """The job that is thought of, unchanged, and how much of it to try."""

    model_config = ConfigDict(json_schema_extra={"examples": [_EXAMPLE]})

    prompts: int = Field(
        DEFAULT_PROMPTS, ge=1, le=MOST_PROMPTS, description="Training rows, drawn with the seed; all where fewer."
    )
    samples: int | None = Field(
        None, ge=2, le=64, description="Completions of each: the group. Unset: the job's `num_generations`."
    )


class SignalProbeObject(Reply):
    """Groups of completions of the model that a job would begin with, graded by the job's rewards."""

    id: str
    object: Literal["signal_probe"] = "signal_probe"
    created_at: int
    started_at: int | None
    finished_at: int | None
    status: JobStatus = Field(description="As of a job, but never `paused`.")
    stage: Stage | None
    status_reason: StatusReason | None
    error: JobError | None
    cancel_requested_at: int | None
    model: str
    training_file: str
    validation_file: str | None
    prompts: int
    samples: int
    seed: int
    method: dict[str, Any] = Field(description="As it was sent; `spec` of the probe says what it means.")
    metadata: dict[str, str]
    attempt: int = Field(description="How many times a worker took it. Each begins at the start.")

    @classmethod
    def of(cls, job: Job, probe: SignalProbe) -> "SignalProbeObject":
        return cls(**_facts(job, probe))


class SignalProbeDetail(SignalProbeObject):
    """With what it found."""

    gpu_seconds: float = Field(description="Wall seconds that it has held a worker, all attempts together.")
    spec: JobSpec = Field(description="The job that would run.")
    report: SignalReport | None = Field(description="Once it has succeeded.")

    @classmethod
    def with_report(cls, job: Job, probe: SignalProbe, *, held_s: float) -> "SignalProbeDetail":
        return cls(
            **_facts(job, probe),
            gpu_seconds=round(held_s, 3),
            spec=JobSpec.model_validate(job.spec),
            report=None if probe.report is None else SignalReport.model_validate(probe.report),
        )


def _facts(job: Job, probe: SignalProbe) -> dict[str, Any]:
    return {
        "id": job.id,
        "created_at": unix(job.created_at),
        "started_at": unix_or_none(job.started_at),
        "finished_at": unix_or_none(job.finished_at),
        "status": job.status,
        "stage": job.stage,
        "status_reason": job.status_reason,
        "error": None if job.error is None else JobError.model_validate(job.error),
        "cancel_requested_at": unix_or_none(job.cancel_requested_at),
        "model": job.model,
        "training_file": job.training_file,
        "validation_file": job.validation_file,
        "prompts": probe.prompts,
        "samples": probe.samples,
        "seed": job.seed,
        "method": job.method,
        "metadata": job.metadata_,
        "attempt": job.attempt,
    }
