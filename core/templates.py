"""Template strings of OpenAI's graders: `{{ sample.output_text }}`, `{{ sample.output_json.x }}`, `{{ item.answer }}`.

`item` is the row's columns, `sample` the completion. Paths go into objects by name and into lists by number
(`item.answers[0]` or `item.answers.0`). Values that are not text are written as JSON.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.strict_json import strict_json

MAX_CHARS = 32_768
_SAMPLE_NAMES = ("output_text", "output_json")
_VARIABLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_PATH = re.compile(r"\s*(\w+)((?:\.[\w-]+|\[\d+\])+)\s*")
_STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]")


class TemplateError(ValueError):
    """Text with a variable that there is not; its message says which."""


class NothingThereError(LookupError):
    """A variable has no value for this completion or row: the path leads nowhere, or to null."""

    def __init__(self, variable: "Variable", *, is_null: bool) -> None:
        super().__init__(f"`{variable}` is {'null' if is_null else 'not there'}")
        self.variable = variable
        self.is_null = is_null


@dataclass(frozen=True, slots=True)
class Variable:
    namespace: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.namespace, *self.path))


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[str | Variable, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the row that it reads."""
        names = (part.path[0] for part in self.parts if isinstance(part, Variable) and part.namespace == "item")
        return tuple(dict.fromkeys(names))

    def render(self, completion: str, columns: Mapping[str, Any]) -> str:
        """Raises `NothingThereError`."""
        return "".join(part if isinstance(part, str) else _lookup(part, completion, columns) for part in self.parts)


def parse_template(text: str) -> Template:
    """Raises `TemplateError`."""
    if len(text) > MAX_CHARS:
        raise TemplateError(f"is longer than {MAX_CHARS} characters")
    parts: list[str | Variable] = []
    for number, part in enumerate(_VARIABLE.split(text)):
        if number % 2:
            parts.append(_variable(part))
        elif part:
            parts.append(part)
    return Template(tuple(parts))


def _variable(text: str) -> Variable:
    shown = f"`{{{{{text[:60]}}}}}`"
    match = _PATH.fullmatch(text)
    if match is None or match[1] not in {"item", "sample"}:
        raise TemplateError(f"{shown} is not a variable: write `{{{{item.COLUMN}}}}` or `{{{{sample.output_text}}}}`")
    path = tuple(name or number for name, number in _STEP.findall(match[2]))
    if match[1] == "sample" and path[0] not in _SAMPLE_NAMES:
        near = difflib.get_close_matches(path[0], _SAMPLE_NAMES, n=1)
        names = " and ".join(f"`sample.{name}`" for name in near or _SAMPLE_NAMES)
        raise TemplateError(f"{shown} is not there: {'did you mean' if near else 'there are'} {names}")
    if match[1] == "sample" and path[0] == "output_text" and len(path) > 1:
        raise TemplateError(f"{shown} goes into text: write `sample.output_json` for completions in JSON")
    return Variable(match[1], path)


def _lookup(variable: Variable, completion: str, columns: Mapping[str, Any]) -> str:
    if variable.namespace == "item":
        return _text(variable, columns, variable.path)
    if variable.path == ("output_text",):
        return completion
    try:
        value = strict_json(completion)
    except (ValueError, RecursionError):
        raise NothingThereError(variable, is_null=False) from None
    return _text(variable, value, variable.path[1:])


def _text(variable: Variable, value: Any, path: tuple[str, ...]) -> str:
    for step in path:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and len(step) < 10 and int(step) < len(value):
            value = value[int(step)]
        else:
            raise NothingThereError(variable, is_null=False)
    if value is None:
        raise NothingThereError(variable, is_null=True)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
