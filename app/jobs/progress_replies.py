"""What a run reports, as clients see it: events, step metrics, rollouts, checkpoints."""

from typing import Any, Literal

from pydantic import ConfigDict, Field

from app.jobs.replies import Reply, unix
from app.models.names import fine_tuned_checkpoint
from core.db.models import Checkpoint, Job, JobEvent, RolloutRecord, StepMetrics


class EventObject(Reply):
    """`fine_tuning.job.event`; the fields up to `data` are OpenAI's."""

    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: str = Field(description="`info`, `warn` or `error`.")
    message: str
    type: str = Field(description="`message` or `metrics`.")
    data: dict[str, Any]

    seq: int = Field(description="1, 2, 3, ... in this job, without gaps: for `after_seq`.")
    attempt: int
    code: str = Field(description="What happened, for programs.")

    @classmethod
    def of(cls, event: JobEvent) -> "EventObject":
        return cls(
            id=event.id,
            created_at=unix(event.created_at),
            level=event.level,
            message=event.message,
            type=event.type,
            data=event.data,
            seq=event.seq,
            attempt=event.attempt,
            code=event.code,
        )


class StepObject(Reply):
    step: int
    attempt: int = Field(description="Which attempt trained it; a step that was done again belongs to the later one.")
    created_at: int
    superseded: bool = Field(description="Beyond the step from which a later attempt went on: it is done again.")
    metrics: dict[str, float | None] = Field(description="TRL's names. Null where a number was not finite.")

    @classmethod
    def of(cls, row: StepMetrics, job: Job, keys: frozenset[str] | None) -> "StepObject":
        """Only `keys`, where given."""
        metrics = {key: value for key, value in row.metrics.items() if keys is None or key in keys}
        return cls(
            step=row.step,
            attempt=row.attempt,
            created_at=unix(row.created_at),
            superseded=row.step > job.step,
            metrics=metrics,
        )


class MetricsReply(Reply):
    """Steps in order."""

    object: Literal["list"] = "list"
    data: list[StepObject]
    has_more: bool
    next_from_step: int | None = Field(description="`from_step` of the next request, if there is more.")


class GradeObject(Reply):
    model_config = ConfigDict(frozen=True, extra="allow")

    outcome: str = Field(description="`scored`, `no_answer`, `user_error` or `infrastructure_error`.")
    value: float | None
    error: str | None = None


class RolloutObject(Reply):
    """One completion of one prompt, with what every reward said of it. Those of a group stand together."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: str
    object: Literal["fine_tuning.job.rollout"] = "fine_tuning.job.rollout"
    step: int
    attempt: int
    index: int = Field(description="Place in the step's generation batch.")
    row: int = Field(description="Line of the training file that the prompt came from.")
    prompt: str
    completion: str
    grades: dict[str, GradeObject] = Field(description="By reward name.")
    reward: float | None = Field(description="The weighted sum; null, never 0, where a reward failed.")
    advantage: float | None = Field(description="Null where dynamic sampling left the rollout's silent group out.")
    completion_tokens: int
    finish_reason: str = Field(description="`stop` or `length`.")

    @classmethod
    def of(cls, record: RolloutRecord) -> "RolloutObject":
        place = {"id": f"{record.step}-{record.index}", "step": record.step, "attempt": record.attempt}
        return cls.model_validate({**record.rollout, **place, "index": record.index})


class CheckpointFile(Reply):
    name: str
    size_bytes: int
    sha256: str


class CheckpointObject(Reply):
    """`fine_tuning.job.checkpoint`; the fields up to `metrics` are OpenAI's."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuning_job_id: str
    fine_tuned_model_checkpoint: str
    step_number: int
    metrics: dict[str, float | None]

    attempt: int
    is_best: bool = Field(description="Whether it belongs to the best held-out evaluation so far.")
    pinned: bool = Field(description="Kept for good, because somebody asked for it.")
    files: list[CheckpointFile]
    manifest_sha256: str

    @classmethod
    def of(cls, checkpoint: Checkpoint, job: Job) -> "CheckpointObject":
        return cls(
            id=checkpoint.id,
            created_at=unix(checkpoint.created_at),
            fine_tuning_job_id=job.id,
            fine_tuned_model_checkpoint=fine_tuned_checkpoint(job.model, job.suffix, job.id, checkpoint.step),
            step_number=checkpoint.step,
            metrics={**checkpoint.metrics, "step": checkpoint.step},
            attempt=checkpoint.attempt,
            is_best=checkpoint.is_best,
            pinned=checkpoint.pinned,
            files=[CheckpointFile.model_validate(file) for file in checkpoint.files],
            manifest_sha256=checkpoint.manifest_sha256,
        )
