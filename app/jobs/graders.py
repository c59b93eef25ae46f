"""OpenAI's graders, as `reinforcement` jobs write them."""

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, ValidatorFunctionWrapHandler, WrapValidator, field_validator, model_validator
from pydantic_core import PydanticCustomError

from core.builtin_rewards.comparison import FormulaReward, Metric, StringCheck, TextSimilarity, refuse_metric
from core.builtin_rewards.parameters import TemplateText
from core.formulas import MAX_CHARS, Formula, FormulaError, parse_formula
from core.spec import Frozen

MAX_INLINE_SOURCE_CHARS = 256 * 1024
MAX_GRADERS = 10

GraderName = Annotated[str, Field(min_length=1, max_length=64)]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ASKS_A_MODEL = ("score_model", "label_model")


class PythonGrader(Frozen):
    """Source that defines `grade(sample, item)`."""

    type: Literal["python"]
    name: GraderName = "grader"
    source: str = Field(min_length=1, max_length=MAX_INLINE_SOURCE_CHARS)
    image_tag: str | None = Field(None, max_length=64, description="Taken and ignored: graders run on the worker.")


class StringCheckGrader(Frozen):
    """1 where input and reference are equal, or not, or where the input contains the reference."""

    type: Literal["string_check"]
    name: GraderName = "grader"
    input: TemplateText
    reference: TemplateText
    operation: Literal["eq", "ne", "like", "ilike"]

    @property
    def builtin(self) -> StringCheck:
        return StringCheck(builtin="string_check", input=self.input, reference=self.reference, operation=self.operation)


class TextSimilarityGrader(Frozen):
    """How alike two texts are, from 0 to 1."""

    type: Literal["text_similarity"]
    name: GraderName = "grader"
    input: TemplateText
    reference: TemplateText
    evaluation_metric: Metric

    @field_validator("evaluation_metric", mode="before")
    @classmethod
    def _is_offered(cls, value: object) -> object:
        return refuse_metric(value)

    @property
    def builtin(self) -> TextSimilarity:
        return TextSimilarity(
            builtin="text_similarity", input=self.input, reference=self.reference, metric=self.evaluation_metric
        )


def _parse_simple(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    return parse_grader(value, _SIMPLE)


def _parse_any(value: Any, _: ValidatorFunctionWrapHandler) -> Any:
    return parse_grader(value, GRADERS)


SimpleGrader = PythonGrader | StringCheckGrader | TextSimilarityGrader
if TYPE_CHECKING:
    _Inner = SimpleGrader
else:
    _Inner = Annotated[Annotated[SimpleGrader, Discriminator("type")], WrapValidator(_parse_simple)]


class MultiGrader(Frozen):
    """Arithmetic over the scores of other graders, by their keys."""

    type: Literal["multi"]
    name: GraderName = "grader"
    graders: dict[str, _Inner] = Field(min_length=1, max_length=MAX_GRADERS)
    calculate_output: str = Field(
        min_length=1, max_length=MAX_CHARS, description="With + - * / ^, min, max, abs, floor, ceil, exp, sqrt, log."
    )

    @field_validator("graders")
    @classmethod
    def _can_be_written_in_a_formula(cls, graders: dict[str, SimpleGrader]) -> dict[str, SimpleGrader]:
        for key in graders:
            if not _VARIABLE.fullmatch(key):
                fix = "Use letters, digits and underscores, and begin with a letter."
                message = f"{key[:64]!r} cannot be written in calculate_output"
                raise PydanticCustomError("invalid_grader_key", "{message}", {"message": message, "fix": fix})
        return graders

    @model_validator(mode="after")
    def _reads_its_graders(self) -> Self:
        try:
            names = parse_formula(self.calculate_output).names
        except FormulaError as error:
            raise _formula_error(str(error), "Write it like `0.7 * answer + 0.3 * format`.") from None
        for name in names:
            if name not in self.graders:
                near = difflib.get_close_matches(name, self.graders, n=1)
                fix = f"Did you mean `{near[0]}`?" if near else f"The graders are {', '.join(self.graders)}."
                raise _formula_error(f"reads `{name}`, which is no grader here", fix)
        try:
            self.formula.best()
        except FormulaError as error:
            raise _formula_error(str(error), "Make it have a value where every score is 0 or 1.") from None
        return self

    @property
    def formula(self) -> Formula:
        return parse_formula(self.calculate_output)

    @property
    def builtin(self) -> FormulaReward:
        return FormulaReward(builtin="formula", expression=self.calculate_output)


if TYPE_CHECKING:
    AnyGrader = SimpleGrader | MultiGrader
else:
    AnyGrader = Annotated[
        Annotated[SimpleGrader | MultiGrader, Discriminator("type")],
        WrapValidator(_parse_any),
    ]

_SIMPLE: Mapping[str, type[Frozen]] = {
    "python": PythonGrader,
    "string_check": StringCheckGrader,
    "text_similarity": TextSimilarityGrader,
}
GRADERS: Mapping[str, type[Frozen]] = {**_SIMPLE, "multi": MultiGrader}


def parse_grader(value: Any, kinds: Mapping[str, type[Frozen]]) -> Any:
    """By its type: a union would report its mistakes in words of its own."""
    if isinstance(value, tuple(kinds.values())):
        return value
    kind = value.get("type") if isinstance(value, Mapping) else "python"
    if kind in _ASKS_A_MODEL:
        fix = "Upload a reward, or use the built-in reward `http` with an endpoint of yours that asks the model."
        message = "graders that ask a model are not supported: grading runs without network"
        raise PydanticCustomError("grader_not_supported", "{message}", {"message": message, "fix": fix})
    if not isinstance(kind, str) or kind not in kinds:
        fix = "Send the same logic as a grader of type `python`, or upload a reward and use method.type `grpo`."
        message = f"graders of this type are not supported here; {', '.join(kinds)} are"
        raise PydanticCustomError("grader_not_supported", "{message}", {"message": message, "fix": fix})
    return kinds[kind].model_validate(value)


def _formula_error(message: str, fix: str) -> PydanticCustomError:
    text = f"calculate_output {message}"
    return PydanticCustomError("invalid_formula", "{message}", {"message": text, "fix": fix})
