"""Rewards over two texts that templates make, OpenAI's graders among them, and arithmetic over other rewards."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from core.builtin_rewards.parameters import Builtin, ColumnName, TemplateText
from core.formulas import MAX_CHARS, Formula, FormulaError, parse_formula
from core.templates import Template, Variable, parse_template

Metric = Literal["fuzzy_match", "bleu", "gleu", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"]
REFUSED_METRICS = {
    "cosine": "needs an embedding model, and rewards run without network",
    "meteor": "needs WordNet's data",
}
"""OpenAI's others, and why they cannot be had."""


def refuse_metric(value: object) -> object:
    """The value, unless it is one of OpenAI's metrics that cannot be had; then it raises with what to use."""
    if isinstance(value, str) and value in REFUSED_METRICS:
        message = f"`{value}` is not offered: it {REFUSED_METRICS[value]}"
        fix = "Use `fuzzy_match`, `gleu` or `rouge_l`, or upload a reward of your own."
        raise PydanticCustomError("metric_not_supported", "{message}", {"message": message, "fix": fix})
    return value


class StringCheck(Builtin):
    """OpenAI's string check: 1 where input and reference are equal (`eq`), or are not (`ne`), or where the input
    contains the reference (`like`; `ilike` ignores case)."""

    builtin: Literal["string_check"]
    input: TemplateText = "{{sample.output_text}}"
    reference: TemplateText
    operation: Literal["eq", "ne", "like", "ilike"]
    example: ClassVar[Mapping[str, Any]] = {
        "input": "{{sample.output_json.answer}}",
        "reference": "{{item.answer}}",
        "operation": "eq",
    }

    @property
    def templates(self) -> tuple[Template, Template]:
        """Input and reference."""
        return parse_template(self.input), parse_template(self.reference)

    @property
    def columns(self) -> tuple[str, ...]:
        return _columns(*self.templates)


class TextSimilarity(Builtin):
    """How alike the completion and the reference are, from 0 to 1: OpenAI's text similarity.

    `fuzzy_match` is rapidfuzz's ratio of edits; the others count n-grams of words and punctuation marks: `bleu` (up to
    4, smoothed as sacrebleu does), `gleu` (Google's, up to 4), `rouge_1` to `rouge_5` and `rouge_l` (F1, lower case).
    """

    builtin: Literal["text_similarity"]
    column: ColumnName | None = Field(None, description="Column with the reference.")
    input: TemplateText = "{{sample.output_text}}"
    reference: TemplateText | None = Field(None, description="Template of the reference, instead of a column.")
    metric: Metric
    example: ClassVar[Mapping[str, Any]] = {"column": "summary", "metric": "rouge_l"}

    @field_validator("metric", mode="before")
    @classmethod
    def _is_offered(cls, value: object) -> object:
        return refuse_metric(value)

    @model_validator(mode="after")
    def _has_one_reference(self) -> Self:
        if (self.column is None) == (self.reference is None):
            raise ValueError("give `column` or `reference`, not both")
        return self

    @property
    def templates(self) -> tuple[Template, Template]:
        """Input and reference."""
        if self.column is not None:
            return parse_template(self.input), Template((Variable("item", (self.column,)),))
        assert self.reference is not None
        return parse_template(self.input), parse_template(self.reference)

    @property
    def columns(self) -> tuple[str, ...]:
        return _columns(*self.templates)


class FormulaReward(Builtin):
    """Arithmetic over the scores of rewards that stand before it in the job, by their names: + - * / ^, min, max, abs,
    floor, ceil, exp, sqrt, log. Give those the weight 0 where the formula alone is to count."""

    builtin: Literal["formula"]
    expression: str = Field(min_length=1, max_length=MAX_CHARS)
    example: ClassVar[Mapping[str, Any]] = {"expression": "0.8 * answer + 0.2 * min(format, brevity)"}

    @field_validator("expression")
    @classmethod
    def _is_a_formula(cls, value: str) -> str:
        try:
            parse_formula(value).best()
        except FormulaError as error:
            raise ValueError(str(error)) from None
        return value

    @property
    def best(self) -> float:
        return self.formula.best()

    @property
    def formula(self) -> Formula:
        return parse_formula(self.expression)


def _columns(*templates: Template) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for template in templates for name in template.columns))
