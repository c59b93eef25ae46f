"""Where a job's metrics go beside the ledger, in the words of OpenAI's `integrations`: a type, and its settings.

Addresses and keys are the operator's (`core.settings`): a job says only how its run is called there.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from core.settings import ExportTarget
from core.spec import Frozen

ProjectName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""What every target takes as it is; trackio makes it a file's name."""
EntityName = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
RunName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f]+$")]
Tags = Annotated[tuple[Tag, ...], Field(max_length=16)]


class TrackioRun(Frozen):
    project: ProjectName
    name: RunName | None = Field(None, description="Of the run; unset: the job's id.")


class MlflowRun(TrackioRun):
    """`project` is MLflow's experiment."""

    tags: Tags = ()


class WandbRun(TrackioRun):
    """OpenAI's fields."""

    entity: EntityName | None = Field(None, description="Team or user; unset: the default of the server's key.")
    tags: Tags = ()


class TensorboardRun(Frozen):
    """Nothing to say: the event file is an artifact of the job."""


Run = WandbRun | MlflowRun | TensorboardRun | TrackioRun


class Integration(Frozen):
    """OpenAI's shape: the type, and the settings under the type's own name."""

    type: ExportTarget
    wandb: WandbRun | None = None
    mlflow: MlflowRun | None = None
    tensorboard: TensorboardRun | None = None
    trackio: TrackioRun | None = None

    @model_validator(mode="before")
    @classmethod
    def _tensorboard_says_nothing(cls, value: Any) -> Any:
        """`{"type": "tensorboard"}` is enough."""
        if isinstance(value, Mapping) and value.get("type") == ExportTarget.TENSORBOARD:
            return {**value, "tensorboard": {} if value.get("tensorboard") is None else value["tensorboard"]}
        return value

    @model_validator(mode="after")
    def _has_its_settings(self) -> Self:
        if [target for target, run in self._runs.items() if run is not None] != [self.type]:
            raise PydanticCustomError(
                "integration_incomplete",
                "the settings must stand under `{type}`, and nowhere else",
                {"type": self.type.value, "fix": f'Write {{"type": "{self.type}", "{self.type}": {{...}}}}.'},
            )
        return self

    @property
    def run(self) -> Run:
        run = self._runs[self.type]
        assert run is not None, "validated"
        return run

    @property
    def _runs(self) -> dict[ExportTarget, Run | None]:
        return {
            ExportTarget.WANDB: self.wandb,
            ExportTarget.MLFLOW: self.mlflow,
            ExportTarget.TENSORBOARD: self.tensorboard,
            ExportTarget.TRACKIO: self.trackio,
        }

    def as_reply(self) -> dict[str, Any]:
        """As OpenAI's job object has it."""
        return {"type": self.type.value, self.type.value: self.run.model_dump(mode="json")}
