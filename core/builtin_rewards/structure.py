"""Rewards for the structure of the completion: JSON and tags."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator

from core.builtin_rewards.parameters import Builtin, ColumnName, TextBuiltin

MAX_SCHEMA_CHARS = 65_536
MAX_JSON_FIELDS = 30
"""Each gives two metrics, and a grade carries at most 64."""


class JsonBuiltin(TextBuiltin):
    allow_fence: bool = Field(False, description="Take JSON in a Markdown code fence too (the last one).")


class JsonValid(JsonBuiltin):
    """1 where the completion is JSON. NaN and Infinity are not."""

    builtin: Literal["json_valid"]
    kind: Literal["any", "object", "array"] = "any"
    example: ClassVar[Mapping[str, Any]] = {"kind": "object"}


class JsonSchema(JsonBuiltin):
    """1 where the completion is JSON that the schema (draft 2020-12) accepts; `$ref` leads inside the schema only."""

    builtin: Literal["json_schema"]
    json_schema: dict[str, Any] | bool = Field(alias="schema")
    example: ClassVar[Mapping[str, Any]] = {
        "schema": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    }

    @field_validator("json_schema")
    @classmethod
    def _is_not_huge(cls, value: dict[str, Any] | bool) -> dict[str, Any] | bool:
        if len(json.dumps(value)) > MAX_SCHEMA_CHARS:
            raise ValueError(f"must be at most {MAX_SCHEMA_CHARS} characters of JSON")
        return value


class JsonFields(JsonBuiltin):
    """The weighted share of the reference's fields that the completion, a JSON object, has right.

    Absent counts as null. A completion that is no JSON object has nothing right and everything null.
    Metrics: `json_fields/<field>/match`; `json_fields/<field>/null` (the reference has a value and the completion has
    not: averaged, the null rate that shows a field collapsing); `json_fields/parsed`.
    """

    builtin: Literal["json_fields"]
    column: ColumnName = Field(description="Column with the reference: an object, or JSON text of one.")
    weights: dict[ColumnName, Annotated[float, Field(ge=0, le=1000)]] = Field(
        default_factory=dict,
        max_length=MAX_JSON_FIELDS,
        description="Fields that count, and how much. Unset: all fields of the reference, equally.",
    )
    null_penalty: float = Field(
        0.0, ge=0, le=1000, description="Subtracted, times the field's share, where a value is left null."
    )
    ignore_case: bool = False
    ignore_order: bool = Field(False, description="Compare lists as sets with repetition.")
    tolerance: float = Field(0.0, ge=0, description="Largest difference between numbers.")
    example: ClassVar[Mapping[str, Any]] = {
        "column": "record",
        "weights": {"name": 2, "birth_date": 1},
        "null_penalty": 0.5,
    }

    @field_validator("weights")
    @classmethod
    def _one_counts(cls, value: dict[str, float]) -> dict[str, float]:
        if value and not any(value.values()):
            raise ValueError("at least one field must have a weight above 0")
        return value


class FormatTags(Builtin):
    """1 where the completion is these tags, each once, in order and with something inside, and nothing around them."""

    builtin: Literal["format_tags"]
    tags: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w-]{0,63}$")], ...] = Field(
        ("think", "answer"), min_length=1, max_length=16
    )
    opened: bool = Field(False, description="The chat template has already written the first opening tag.")
    example: ClassVar[Mapping[str, Any]] = {"tags": ["think", "answer"]}
