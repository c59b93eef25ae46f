"""What the parameters of all built-in rewards have in common."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from core.templates import parse_template

MAX_PATTERN_CHARS = 1000
MAX_CASELESS_SETS = 16
_IGNORES_CASE = re.compile(r"\(\?[aLmsux]*i")

ColumnName = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


def _is_pattern(text: str) -> str:
    """Checked with `re`, whose patterns `regex` takes too: compiling there can be made to take seconds.

    What takes long here is folding the case of large sets, some milliseconds for each.
    """
    if text.count("[") > MAX_CASELESS_SETS and _IGNORES_CASE.search(text):
        raise ValueError(f"has more than {MAX_CASELESS_SETS} sets of characters, too many together with `(?i)`")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return text


def _is_template(text: str) -> str:
    parse_template(text)
    return text


Pattern = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS), AfterValidator(_is_pattern)]
TemplateText = Annotated[str, AfterValidator(_is_template)]


class Builtin(BaseModel):
    """The parameters of one built-in reward; `builtin` is its name."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, serialize_by_alias=True
    )
    example: ClassVar[Mapping[str, Any]] = {}

    @property
    def best(self) -> float:
        """What a perfect completion gets."""
        return 1.0

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the rows must have."""
        column = getattr(self, "column", None)
        return () if column is None else (column,)


class TextBuiltin(Builtin):
    after: Text | None = Field(
        None,
        description="Read only what stands after the last occurrence of this, e.g. `</think>`; without it, nothing.",
    )


class ReferenceBuiltin(TextBuiltin):
    column: ColumnName = Field(description="Column with the reference.")
