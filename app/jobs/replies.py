"""Jobs as clients see them: OpenAI's fine-tuning job object with our own fields beside it, and the preview of one."""

from collections.abc import Sequence
from datetime import datetime
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from app.errors import FieldError
from app.jobs.resolve import Resolved
from app.models.names import fine_tuned_model
from core.db.models import Job, StepMetrics
from core.spec import CheckpointRef, JobSpec
from core.status import JobStatus, Stage, StatusReason

SILENT_SHARE_KEYS = ("signal/silent_share", "frac_reward_zero_std")
"""Share of groups without reward variance: ours over the step, else TRL's."""
PACE_STEPS = 20
"""The newest steps whose mean time says how long the others will take."""


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


class JobError(Reply):
    code: str
    message: str
    param: str | None = None
    fix: str | None = None


class Progress(Reply):
    """Where a run is, from the newest step that was reported."""

    step: int
    max_steps: int
    durable_step: int | None = Field(description="Step of the newest committed checkpoint: it cannot be lost.")
    reward: float | None = Field(description="Mean reward of the newest step.")
    silent_share: float | None = Field(description="Share of its groups whose rewards were all equal.")
    estimated_remaining_s: float | None = Field(description="Of training; evaluations come on top.")


class BranchedFrom(Reply):
    """A checkpoint, in the words of its own object."""

    fine_tuning_job_id: str
    checkpoint_id: str
    step_number: int

    @classmethod
    def of(cls, start: CheckpointRef) -> "BranchedFrom":
        return cls(fine_tuning_job_id=start.job_id, checkpoint_id=start.checkpoint_id, step_number=start.step)


class JobObject(Reply):
    """`fine_tuning.job`. The fields up to `integrations` are OpenAI's."""

    id: str
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    status: JobStatus
    error: JobError | None
    model: str
    fine_tuned_model: str | None
    organization_id: str
    training_file: str
    validation_file: str | None
    result_files: list[str] = Field(description="The id of results.json, once the job has succeeded.")
    trained_tokens: int | None
    seed: int
    hyperparameters: dict[str, Any] = Field(description="OpenAI's old place; ours are in `method` and `spec`.")
    method: dict[str, Any] = Field(description="As it was sent; `spec` says what it means.")
    metadata: dict[str, str]
    integrations: list[Any] = Field(description="As OpenAI has them, by type; never with keys or addresses.")

    suffix: str | None
    stage: Stage | None = Field(description="What a running job is doing.")
    status_reason: StatusReason | None = Field(description="Why the job is in this status, for programs.")
    started_at: int | None
    cancel_requested_at: int | None
    pause_requested_at: int | None = Field(description="A wish until `status` is `paused`; null once resumed.")
    branched_from: BranchedFrom | None = Field(
        description="The checkpoint that this job began from, if `model` named one."
    )
    attempt: int = Field(description="How many times a worker took the job.")
    failures: int
    preemptions: int
    progress: Progress
    spec: JobSpec = Field(description="What runs: every default resolved, model, rewards and data pinned.")

    @classmethod
    def of(cls, job: Job, steps: Sequence[StepMetrics]) -> "JobObject":
        """`steps` are the newest that the job has reported, the newest first."""
        spec = JobSpec.model_validate(job.spec)
        progress = _progress(job, spec, steps)
        return cls(
            id=job.id,
            created_at=unix(job.created_at),
            finished_at=unix_or_none(job.finished_at),
            estimated_finish=_estimated_finish(job, progress, steps),
            status=job.status,
            error=None if job.error is None else JobError.model_validate(job.error),
            model=job.model,
            fine_tuned_model=_fine_tuned_model(job),
            organization_id=job.tenant_id,
            training_file=job.training_file,
            validation_file=job.validation_file,
            result_files=[] if job.results_file is None else [job.results_file],
            trained_tokens=job.trained_tokens,
            seed=job.seed,
            hyperparameters={},
            method=job.method,
            metadata=job.metadata_,
            integrations=job.integrations,
            suffix=job.suffix,
            stage=job.stage,
            status_reason=job.status_reason,
            started_at=unix_or_none(job.started_at),
            cancel_requested_at=unix_or_none(job.cancel_requested_at),
            pause_requested_at=unix_or_none(job.pause_requested_at),
            branched_from=None if spec.start_from is None else BranchedFrom.of(spec.start_from),
            attempt=job.attempt,
            failures=job.failures,
            preemptions=job.preemptions,
            progress=progress,
            spec=spec,
        )


class JobPreview(Reply):
    """What `?dry_run=true` answers: the job that would run. Nothing was created."""

    object: Literal["fine_tuning.job.preview"] = "fine_tuning.job.preview"
    spec: JobSpec
    steps: int
    rollouts_per_step: int
    rollouts: int = Field(
        description="Completions that training would generate and grade; dynamic_sampling may add up to "
        "max_extra_batches times as many."
    )
    training_rows: int = Field(description="Without the held-out ones; rows with equal prompts stay on one side.")
    held_out_tasks: int = Field(description="Different prompts among the held-out rows.")
    warnings: list[FieldError] = Field(description="What would run, but may not be what was meant.")
    signal_probe: str | None = Field(description="Id of the signal probe of this job, if `signal_probe` asked for one.")

    @classmethod
    def of(cls, resolved: Resolved, *, signal_probe: str | None = None) -> "JobPreview":
        spec = resolved.spec
        per_step = spec.hyperparameters.rollouts_per_step
        return cls(
            spec=spec,
            steps=spec.max_steps,
            rollouts_per_step=per_step,
            rollouts=per_step * spec.max_steps // spec.hyperparameters.num_iterations,
            training_rows=resolved.split.training_rows,
            held_out_tasks=resolved.split.held_out_tasks,
            warnings=[FieldError(field=w.field, message=w.message, code=w.code, fix=w.fix) for w in resolved.warnings],
            signal_probe=signal_probe,
        )


def unix(moment: datetime) -> int:
    return int(moment.timestamp())


def unix_or_none(moment: datetime | None) -> int | None:
    return None if moment is None else unix(moment)


def _progress(job: Job, spec: JobSpec, steps: Sequence[StepMetrics]) -> Progress:
    metrics: dict[str, float | None] = steps[0].metrics if steps else {}
    pace = _seconds_per_step(steps)
    shares = [metrics[key] for key in SILENT_SHARE_KEYS if key in metrics]
    return Progress(
        step=job.step,
        max_steps=spec.max_steps,
        durable_step=job.durable_step,
        reward=metrics.get("reward"),
        silent_share=shares[0] if shares else None,
        estimated_remaining_s=None
        if pace is None or job.status.is_terminal
        else round(pace * max(0, spec.max_steps - job.step), 1),
    )


def _seconds_per_step(steps: Sequence[StepMetrics]) -> float | None:
    times = [seconds for step in steps if (seconds := step.metrics.get("step_time")) is not None]
    return fmean(times) if times else None


def _estimated_finish(job: Job, progress: Progress, steps: Sequence[StepMetrics]) -> int | None:
    """Only while it runs: a waiting job depends on others. Counted from the newest step, on the database's clock."""
    if job.status is not JobStatus.RUNNING or not steps or progress.estimated_remaining_s is None:
        return None
    return unix(steps[0].created_at) + round(progress.estimated_remaining_s)


def _fine_tuned_model(job: Job) -> str | None:
    return fine_tuned_model(job.model, job.suffix, job.id) if job.status is JobStatus.SUCCEEDED else None
