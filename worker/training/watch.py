"""Counts the watched fields of a step's completions (`core.watch`)."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import regex

from core.rows import Row
from core.strict_json import strict_json
from core.watch import WatchedField, is_missing, value_at
from worker.training.rewards import Completion

PATTERN_TIMEOUT_S = 0.05
"""Per completion: a pattern that runs away costs a step a few seconds, and its share says less."""
_NOT_JSON = object()


class Watch:
    def __init__(self, fields: Sequence[WatchedField]) -> None:
        self._paths = [field for field in fields if field.json_path is not None]
        self._patterns = [(field, regex.compile(field.regex)) for field in fields if field.regex is not None]

    def metrics(self, completions: Sequence[Completion]) -> dict[str, float]:
        """`watch/<name>/...`, over the completions of one generation batch; empty where nothing is watched."""
        found: dict[str, float] = {}
        if self._paths:
            documents = [_document(completion.text) for completion in completions]
            for field in self._paths:
                found |= _named(field.label, _count(field, completions, documents))
        for field, pattern in self._patterns:
            found |= _named(field.label, _search(field, pattern, completions))
        return found


@dataclass(frozen=True, slots=True)
class _Reading:
    value: Any
    """None: null, missing, no JSON at all, or a pattern that is not there."""
    expected: Any
    """None: the reference has no value there, or there is no reference."""
    missing: bool = False
    """JSON without such a place."""


def _count(field: WatchedField, completions: Sequence[Completion], documents: Sequence[Any]) -> dict[str, float]:
    path = field.path
    readings = [
        _Reading(
            value_at(document, path),
            _expected(field, completion.row),
            missing=document is not _NOT_JSON and is_missing(document, path),
        )
        for completion, document in zip(completions, documents, strict=True)
    ]
    due = _due(field, readings)
    numbers: dict[str, float] = {
        "rows": len(due),
        "distinct": len({_canonical(one.value) for one in readings if one.value is not None}),
        "unreadable_share": sum(document is _NOT_JSON for document in documents) / len(documents),
    }
    if due:
        numbers["null_share"] = _share(due, lambda one: one.value is None)
        numbers["missing_share"] = _share(due, lambda one: one.missing)
    if due and field.column is not None:
        numbers["match_share"] = _share(due, lambda one: _canonical(one.value) == _canonical(one.expected))
    return numbers


def _search(field: WatchedField, pattern: "regex.Pattern[str]", completions: Sequence[Completion]) -> dict[str, float]:
    """Where a pattern takes too long to say, the completion is left out."""
    readings = []
    for completion in completions:
        with suppress(TimeoutError):
            expected = None if field.column is None else completion.row.columns.get(field.column)
            readings.append(_Reading(_first_match(pattern, completion.text), expected))
    due = _due(field, readings)
    numbers: dict[str, float] = {
        "rows": len(due),
        "distinct": len({one.value for one in readings if one.value is not None}),
        "share": _share(readings, lambda one: one.value is not None) if readings else 0.0,
    }
    if due and field.column is not None:
        numbers["match_share"] = _share(due, lambda one: one.value is not None and one.value == _text(one.expected))
    return numbers


def _due(field: WatchedField, readings: Sequence[_Reading]) -> Sequence[_Reading]:
    """Those that should have a value."""
    return readings if field.column is None else [one for one in readings if one.expected is not None]


def _share(readings: Sequence[_Reading], holds: Callable[[_Reading], bool]) -> float:
    return sum(map(holds, readings)) / len(readings)


def _expected(field: WatchedField, row: Row) -> Any:
    if field.column is None:
        return None
    reference = row.columns.get(field.column)
    return value_at(_document(reference) if isinstance(reference, str) else reference, field.path)


def _document(text: str) -> Any:
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        return _NOT_JSON


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _first_match(pattern: "regex.Pattern[str]", text: str) -> str | None:
    """Its first group, or all of it where it has none; None where it is not there. Raises TimeoutError."""
    match = pattern.search(text, timeout=PATTERN_TIMEOUT_S)
    if match is None:
        return None
    return (match[1] or "") if pattern.groups else match[0]


def _text(expected: Any) -> str:
    return expected if isinstance(expected, str) else _canonical(expected)


def _named(label: str, numbers: Mapping[str, float]) -> dict[str, float]:
    return {f"watch/{label}/{name}": float(value) for name, value in numbers.items()}
