"""The body of `POST /v1/fine_tuning/jobs`, parsed once at the door."""

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from app.jobs.integrations import Integrations
from app.jobs.methods import Method
from core.ids import FileId
from core.spec import Exact, ResourcesSpec

MAX_METADATA_PAIRS = 16
MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]

MODEL = (
    "`name` or `name@revision`; or, to go on from what one of your jobs has trained, its `fine_tuned_model` or the "
    "`fine_tuned_model_checkpoint` of one of its checkpoints: the branch inherits base model and adapter."
)
EXAMPLE: JsonDict = {
    "model": "podium/tiny",
    "training_file": "file-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d",
    "validation_file": "file-0197f0a4c1e27b6a9d0f3c5e8a1b2c3e",
    "suffix": "biography",
    "integrations": [{"type": "tensorboard"}],
    "resources": {"gpus": 1},
    "method": {
        "type": "grpo",
        "grpo": {
            "rewards": [{"reward": "rew-0197f0a4c1e27b6a9d0f3c5e8a1b2c3f"}],
            "hyperparameters": {"num_generations": 8, "prompts_per_step": 8, "max_steps": 120},
        },
    },
}

PAYS_FOR_SIGNAL: JsonDict = {
    "model": "podium/tiny",
    "training_file": "file-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d",
    "method": {
        "type": "grpo",
        "grpo": {
            "rewards": [{"reward": "rew-0197f0a4c1e27b6a9d0f3c5e8a1b2c3f"}],
            "hyperparameters": {
                "max_steps": 120,
                "dynamic_sampling": {"max_extra_batches": 2},
                "prompt_sampling": {"floor": 0.1, "window": 4},
            },
        },
    },
}

BRANCH: JsonDict = {
    "model": "ft:podium/tiny:biography:ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d:ckpt-step-50",
    "training_file": "file-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d",
    "method": {"type": "grpo", "grpo": {"rewards": [{"reward": "rew-0197f0a4c1e27b6a9d0f3c5e8a1b2c3f"}]}},
}


def _not_at_the_top(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError(
            "deprecated_hyperparameters",
            "hyperparameters do not stand at the top of the body",
            {"fix": "Move them to method.reinforcement.hyperparameters or method.grpo.hyperparameters."},
        )
    return value


def _no_fsdp(value: Any) -> Any:
    if value is not None:
        raise PydanticCustomError(
            "fsdp_not_supported",
            "a model's weights are not shared out among GPUs: each of them holds all",
            {"fix": "Leave it out. A model that is too large for one GPU may fit as QLoRA."},
        )
    return value


class Resources(ResourcesSpec):
    fsdp: Annotated[None, BeforeValidator(_no_fsdp)] = Field(
        None, description="Refused: every GPU holds the whole model (DDP)."
    )

    @property
    def pinned(self) -> ResourcesSpec:
        return ResourcesSpec.model_validate(self.model_dump(exclude={"fsdp"}))


class JobCreate(Exact):
    """OpenAI's fields, with `method.type = "grpo"` beside its own methods."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE, PAYS_FOR_SIGNAL, BRANCH]})

    model: str = Field(min_length=1, max_length=400, description=MODEL)
    training_file: FileId
    validation_file: FileId | None = Field(
        None, description="The held-out tasks. Unset: a share of the training file is held out."
    )
    method: Method
    suffix: str | None = Field(
        None, min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$", description="Part of the trained model's name."
    )
    seed: int | None = Field(None, ge=0, lt=2**31, description="Unset: 42.")
    resources: Resources = Resources()
    metadata: dict[MetadataKey, MetadataValue] | None = Field(None, max_length=MAX_METADATA_PAIRS)
    integrations: Integrations = Field(
        None, description="Where the metrics go beside the ledger; keys and addresses are the server's."
    )
    hyperparameters: Annotated[None, BeforeValidator(_not_at_the_top)] = Field(
        None, deprecated=True, description="OpenAI's deprecated place; refused, with the place to use instead."
    )
