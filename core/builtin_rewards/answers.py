"""Rewards for the right answer."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, field_validator, model_validator

from core.builtin_rewards.parameters import ColumnName, Pattern, ReferenceBuiltin, Text, TextBuiltin


class ExactMatch(ReferenceBuiltin):
    """1 where the completion is the reference, or one of them where the column is a list."""

    builtin: Literal["exact_match"]
    ignore_case: bool = False
    strip: bool = Field(True, description="Leave out white space around both.")
    normalize: bool = Field(
        False,
        description="As SQuAD compares: lower case, no punctuation, no English articles, single spaces. A reference of"
        " which nothing is left is compared as it is.",
    )
    example: ClassVar[Mapping[str, Any]] = {"column": "answer", "ignore_case": True}


class Numeric(ReferenceBuiltin):
    """1 where the number in the completion is the reference's, within a tolerance.

    Numbers may have thousands separators, an exponent, or be a fraction such as 3/4. A percent sign changes nothing.
    """

    builtin: Literal["numeric"]
    tolerance: float = Field(0.0, ge=0, description="Largest difference.")
    relative: float = Field(0.0, ge=0, description="Largest difference as a share of the reference; the larger counts.")
    extract: Literal["last", "boxed", "regex"] = Field(
        "last", description="The last number; the one in the last `\\boxed{}`; the last match of `pattern`."
    )
    pattern: Pattern | None = Field(None, description="For `regex`: group 1, or the whole match without groups.")
    example: ClassVar[Mapping[str, Any]] = {"column": "answer", "extract": "boxed", "tolerance": 0.01}

    @model_validator(mode="after")
    def _pattern_goes_with_regex(self) -> Self:
        if (self.extract == "regex") != (self.pattern is not None):
            raise ValueError("`pattern` and `extract: regex` go together")
        return self


class Math(ReferenceBuiltin):
    """1 where the answer equals the reference as mathematics (math-verify): LaTeX, `\\boxed{}`, plain expressions.

    An answer that cannot be read or compared within a second is an infrastructure error, never a 0.
    """

    builtin: Literal["math"]
    boxed: bool = Field(False, description="Only an answer in `\\boxed{}` counts.")
    example: ClassVar[Mapping[str, Any]] = {"column": "solution"}


class Regex(TextBuiltin):
    """1 where the pattern is found; with `column`, where the last match's group is the reference."""

    builtin: Literal["regex"]
    pattern: Pattern
    full: bool = Field(False, description="The pattern must match the whole text.")
    flags: str = Field("", pattern=r"^[imsx]*$", description="Of i (case), m (lines), s (dot matches newline), x.")
    column: ColumnName | None = Field(None, description="Column with what the group must be.")
    group: int | str | None = Field(None, description="With `column`; unset: group 1, or all without groups.")
    example: ClassVar[Mapping[str, Any]] = {"pattern": "^Answer: \\S+$", "flags": "m"}

    @model_validator(mode="after")
    def _group_exists(self) -> Self:
        compiled = re.compile(self.pattern)
        known = self.group in compiled.groupindex or self.group in range(compiled.groups + 1)
        if self.group is not None and not (known and self.column):
            raise ValueError(f"`group` must be one of the pattern's {compiled.groups} groups, and needs `column`")
        return self


class Contains(TextBuiltin):
    """1 where the completion contains the text, or the column's."""

    builtin: Literal["contains"]
    column: ColumnName | None = Field(None, description="Column with the text, or a list of texts.")
    text: tuple[Text, ...] = Field((), max_length=64, description="The texts, instead of a column.")
    require: Literal["any", "all"] = Field("any", description="How many of several texts must be there.")
    ignore_case: bool = False
    example: ClassVar[Mapping[str, Any]] = {"column": "keywords", "require": "all", "ignore_case": True}

    @field_validator("text", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if (self.column is None) != bool(self.text):
            raise ValueError("give `column` or `text`, not both")
        return self


class MultipleChoice(ReferenceBuiltin):
    """1 where the choice that the completion settles on is the reference: a label, or its number counted from 0.

    The last of `\\boxed{B}` and `answer is B` counts; else a label alone on the last line, or one that the completion
    begins with (`B)`). After `answer is`, a label in another case must end the phrase. Completions that name several
    and settle on none score 0.
    """

    builtin: Literal["multiple_choice"]
    choices: tuple[Annotated[str, StringConstraints(min_length=1, max_length=64)], ...] = Field(
        ("A", "B", "C", "D"), min_length=2, max_length=64, description="The labels."
    )
    example: ClassVar[Mapping[str, Any]] = {"column": "answer", "choices": ["A", "B", "C", "D"]}
