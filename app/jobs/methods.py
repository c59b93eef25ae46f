"""How a job is to be trained, as clients write it: our `grpo` method, and OpenAI's `reinforcement`."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, TypeAdapter, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import PydanticCustomError

from app.jobs.graders import AnyGrader
from app.jobs.terms import AnyTerm
from core.spec import (
    AdapterSpec,
    CheckpointSpec,
    EvaluationSpec,
    Exact,
    Frozen,
    GradingSpec,
    Hyperparameters,
    RecordSpec,
    StopSpec,
)
from core.watch import MAX_WATCHED, WatchedField


def _at_least_one(terms: tuple[AnyTerm, ...]) -> tuple[AnyTerm, ...]:
    """Asked after each term was good by itself: `min_length` would blame an empty list for a bad term."""
    if not terms:
        fix = 'Name an uploaded reward, [{"reward": "rew-..."}], or a built-in one, [{"builtin": "exact_match", ...}].'
        raise PydanticCustomError("no_rewards", "there is no reward to train on", {"fix": fix})
    return terms


def _names_apart(fields: tuple[WatchedField, ...]) -> tuple[WatchedField, ...]:
    labels = [field.label for field in fields]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise PydanticCustomError(
            "same_name", "two watched fields are called `{name}`", {"name": twice, "fix": "Give one another `name`."}
        )
    return fields


class GrpoMethod(Frozen):
    rewards: Annotated[tuple[AnyTerm, ...], AfterValidator(_at_least_one)] = Field(max_length=16)
    hyperparameters: Hyperparameters = Hyperparameters()
    adapter: AdapterSpec = AdapterSpec()
    evaluation: EvaluationSpec = EvaluationSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    grading: GradingSpec = GradingSpec()
    watch: Annotated[tuple[WatchedField, ...], AfterValidator(_names_apart)] = Field((), max_length=MAX_WATCHED)
    stop: StopSpec = StopSpec()
    record: RecordSpec = RecordSpec()
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description='Passed to the chat template, e.g. `{"enable_thinking": false}` for Qwen3.'
    )


def _auto_or(number: TypeAdapter[int] | TypeAdapter[float]) -> WrapValidator:
    """`"auto"` and null pass; anything else is checked as `number`, so that a mistake is reported once."""

    def check(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
        return value if value is None or value == "auto" else number.validate_python(value)

    return WrapValidator(check)


_Int = Literal["auto"] | int | None
_Float = Literal["auto"] | float | None
AutoCount = Annotated[_Int, _auto_or(TypeAdapter(Annotated[int, Field(ge=1, le=4096)]))]
AutoEpochs = Annotated[_Int, _auto_or(TypeAdapter(Annotated[int, Field(ge=1, le=1000)]))]
AutoSamples = Annotated[_Int, _auto_or(TypeAdapter(Annotated[int, Field(ge=1, le=64)]))]
AutoInterval = Annotated[_Int, _auto_or(TypeAdapter(Annotated[int, Field(ge=1)]))]
AutoMultiplier = Annotated[_Float, _auto_or(TypeAdapter(Annotated[float, Field(gt=0, le=10_000)]))]


class ReinforcementHyperparameters(Exact):
    """OpenAI's names. `"auto"` is our default."""

    batch_size: AutoCount = Field(None, description="Prompts per step.")
    n_epochs: AutoEpochs = None
    learning_rate_multiplier: AutoMultiplier = None
    compute_multiplier: AutoMultiplier = Field(None, description="Rollouts per prompt: 8 times this, between 2 and 64.")
    eval_interval: AutoInterval = Field(None, description="Steps between evaluations; `auto`: only before and after.")
    eval_samples: AutoSamples = None
    reasoning_effort: Literal["default"] | None = None


class ReinforcementMethod(Frozen):
    grader: AnyGrader
    hyperparameters: ReinforcementHyperparameters = ReinforcementHyperparameters()

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """OpenAI's type allows `"hyperparameters": null`."""
        if isinstance(value, dict) and value.get("hyperparameters", ...) is None:
            return {key: item for key, item in value.items() if key != "hyperparameters"}
        return value


class Method(Frozen):
    """OpenAI's shape: the type, and the settings under the type's own name."""

    type: Literal["grpo", "reinforcement"]
    grpo: GrpoMethod | None = None
    reinforcement: ReinforcementMethod | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_supported(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("type") in ("supervised", "dpo"):
            raise PydanticCustomError(
                "method_not_supported",
                "this server trains with reinforcement only",
                {"fix": "Set type to `grpo`, or to `reinforcement` with a grader."},
            )
        return value

    @model_validator(mode="after")
    def _has_its_settings(self) -> Self:
        if (self.chosen is None) or (self.grpo is not None and self.reinforcement is not None):
            raise PydanticCustomError(
                "method_incomplete",
                "the settings must stand under `{type}`, and nowhere else",
                {"type": self.type, "fix": f'Write {{"type": "{self.type}", "{self.type}": {{...}}}}.'},
            )
        return self

    @property
    def chosen(self) -> GrpoMethod | ReinforcementMethod | None:
        return self.grpo if self.type == "grpo" else self.reinforcement
