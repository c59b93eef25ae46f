"""Trying a grader: OpenAI's bodies and replies, field for field, with our own grader and our own facts beside."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from app.jobs.graders import (
    GRADERS,
    GraderName,
    MultiGrader,
    PythonGrader,
    StringCheckGrader,
    TextSimilarityGrader,
    parse_grader,
)
from app.jobs.terms import AnyTerm
from core.spec import Frozen

PYTHON: JsonDict = {
    "grader": {
        "type": "python",
        "name": "exact",
        "source": "def grade(sample, item):\n    return float(sample['output_text'].strip() == item['answer'])\n",
    },
    "item": {"answer": "4"},
    "model_sample": "4",
}
PODIUM: JsonDict = {
    "grader": {
        "type": "podium",
        "rewards": [
            {"builtin": "format_tags", "weight": 0.2},
            {"reward": "rew-0197f0a4c1e27b6a9d0f3c5e8a1b2c3f", "gate": {"reward": "format_tags"}},
        ],
    },
    "item": {"prompt": "2+2?", "answer": "4"},
    "model_sample": "<think>Two and two.</think><answer>4</answer>",
}


class PodiumGrader(Frozen):
    """The rewards of a job, as `method.grpo.rewards` has them: uploaded ones, built-in ones, weights and gates."""

    type: Literal["podium"]
    name: GraderName = "podium"
    rewards: tuple[AnyTerm, ...] = Field(max_length=16)

    @field_validator("rewards")
    @classmethod
    def _are_some(cls, terms: tuple[AnyTerm, ...]) -> tuple[AnyTerm, ...]:
        if not terms:
            fix = 'Write [{"reward": "rew-..."}] or [{"builtin": "exact_match", "column": "answer"}].'
            raise PydanticCustomError("no_rewards", "there is no reward to try", {"fix": fix})
        return terms


def _parse(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    return parse_grader(value, {**GRADERS, "podium": PodiumGrader})


_Grader = PythonGrader | StringCheckGrader | TextSimilarityGrader | MultiGrader | PodiumGrader
if TYPE_CHECKING:
    TriedGrader = _Grader
else:
    TriedGrader = Annotated[Annotated[_Grader, Discriminator("type")], WrapValidator(_parse)]


class GraderValidate(Frozen):
    model_config = ConfigDict(json_schema_extra={"examples": [{"grader": PYTHON["grader"]}]})

    grader: TriedGrader


class GraderRun(Frozen):
    model_config = ConfigDict(json_schema_extra={"examples": [PYTHON, PODIUM]})

    grader: TriedGrader
    model_sample: str = Field(description="The completion to grade; `sample.output_json` is what it says as JSON.")
    item: dict[str, Any] = Field(default_factory=dict, description="A row of a data set: `item` of the grader.")


class Reply(BaseModel):
    model_config = ConfigDict(frozen=True)


class GraderValidateReply(Reply):
    grader: dict[str, Any] = Field(description="The grader, with its defaults.")


class GraderErrors(Reply):
    """OpenAI's flags: which part of grading went wrong. All false: nothing did."""

    formula_parse_error: bool = Field(False, description="`calculate_output` has no value for these scores.")
    sample_parse_error: bool = Field(False, description="The grader reads `sample.output_json`, and it is not JSON.")
    truncated_observation_error: bool = False
    unresponsive_reward_error: bool = Field(False, description="The grader did not answer in time.")
    invalid_variable_error: bool = Field(False, description="A template names what the item does not have.")
    other_error: bool = False
    python_grader_server_error: bool = Field(False, description="The grader's process broke.")
    python_grader_server_error_type: str | None = None
    python_grader_runtime_error: bool = Field(False, description="The source raised, or returned what is no number.")
    python_grader_runtime_error_details: str | None = None
    model_grader_server_error: bool = False
    model_grader_refusal_error: bool = False
    model_grader_parse_error: bool = False
    model_grader_server_error_details: str | None = None


class GraderMetadata(Reply):
    name: str
    type: str
    errors: GraderErrors
    execution_time: float = Field(description="Seconds in the grader; starting its sandbox comes on top.")
    scores: dict[str, float] = Field(description="Numbers that the grader reported beside its score.")
    token_usage: None = None
    sampled_model_name: None = None


class GraderRunReply(Reply):
    """OpenAI's reply, then ours."""

    reward: float | None = Field(description="Null where there is none: a failure is never a number.")
    metadata: GraderMetadata
    sub_rewards: dict[str, float | None] = Field(description="Of the graders of a `multi`, the rewards of a `podium`.")
    model_grader_token_usage_per_model: dict[str, int] = Field(default_factory=dict)

    outcome: Literal["scored", "no_answer", "user_error", "infrastructure_error"] = Field(
        description="As rollouts of a job say it."
    )
    message: str | None = Field(None, description="What went wrong first.")
    traceback: str | None = Field(None, description="The frames in the grader's own source.")
    output: str = Field(description="The end of what the grader printed.")
