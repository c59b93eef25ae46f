"""Watched fields: what of the completions is counted at every step, beside the reward and without a say in it.

A reward can stay high while a field that few rows have dies out. Its share of nulls, counted where the data have a
value, shows it at the step where it begins (`core.learning.exploits`).
"""

import re
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_WATCHED = 32
MAX_PATTERN_CHARS = 500
_SEGMENT = re.compile(r"""\.(?P<name>[A-Za-z_][\w-]*)|\[(?P<index>\d{1,6})\]|\[(['"])(?P<quoted>[^'"\\]+)\3\]""")
_UNNAMED = re.compile(r"[^A-Za-z0-9_.-]+")

Path = tuple[str | int, ...]


class WatchedField(BaseModel):
    """A place in the JSON that completions are, or a pattern that they may contain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    json_path: str | None = Field(
        None,
        max_length=MAX_PATTERN_CHARS,
        description="One value: `$.death_date`, `$.items[0].name`, `$['odd name']` (the singular queries of RFC 9535).",
        examples=["$.death_date"],
    )
    regex: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_PATTERN_CHARS,
        description="Searched in the completion. Its value is its first group, or all of it where it has none.",
        examples=["I cannot"],
    )
    column: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description="The column with the reference: with `json_path` an object or JSON text of one, with `regex` the "
        "value itself. What is missing is then counted where the reference has a value, and values are compared with "
        "it.",
        examples=["record"],
    )
    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_.-]{1,64}$",
        description="How metrics call it (`watch/<name>/...`); unset: made of the path or the pattern.",
    )

    @model_validator(mode="after")
    def _is_one_thing(self) -> Self:
        if (self.json_path is None) == (self.regex is None):
            raise ValueError("give json_path or regex, one of them")
        if self.json_path is not None:
            parse_path(self.json_path)
        if self.regex is not None:
            _check_pattern(self.regex)
        if not self.label:
            raise ValueError("give it a name: the pattern has no letters to make one of")
        return self

    @property
    def label(self) -> str:
        """Its name in metrics."""
        if self.name is not None:
            return self.name
        text = self.regex if self.regex is not None else ".".join(map(str, self.path))
        return _UNNAMED.sub("_", text).strip("_.")[:64]

    @property
    def path(self) -> Path:
        return parse_path(self.json_path or "$")


def parse_path(text: str) -> Path:
    """The names and indexes on the way from the root; raises ValueError."""
    place, path = 1, []
    while text[:1] == "$" and place < len(text) and (segment := _SEGMENT.match(text, place)):
        index = segment["index"]
        path.append(segment["name"] or segment["quoted"] if index is None else int(index))
        place = segment.end()
    if not path or place < len(text):
        raise ValueError(f"{text!r} is no path to one value; write $.name, $.items[0] or $['a name']")
    return tuple(path)


def _check_pattern(text: str) -> None:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text[:80]!r} is no regular expression: {error}") from error


def is_missing(document: Any, path: Path) -> bool:
    """Whether there is nothing at that place, not even a null."""
    match value_at(document, path[:-1]), path[-1]:
        case dict() as parent, str(name):
            return name not in parent
        case list() as parent, int(index):
            return index >= len(parent)
        case _:
            return True


def value_at(document: Any, path: Path) -> Any:
    """What stands there; None too where nothing does."""
    for segment in path:
        match document, segment:
            case dict(), str():
                document = document.get(segment)
            case list(), int() if segment < len(document):
                document = document[segment]
            case _:
                return None
    return document
