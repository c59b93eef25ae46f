"""Rewards for the structure of the completion: JSON and tags."""

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any

from core.builtin_rewards.structure import MAX_JSON_FIELDS, FormatTags, JsonBuiltin, JsonFields, JsonValid
from core.strict_json import strict_json
from worker.grading.builtins.outcomes import (
    NO_ANSWER,
    Score,
    Scorer,
    UnfitDataError,
    last_fence,
    passed,
    read_after,
    reference,
)
from worker.grading.grades import Rollout
from worker.grading.logged import MAX_NAME_CHARS
from worker.grading.values import storable

_LABEL_CHARS = MAX_NAME_CHARS - len("json_fields//match")
_KINDS: Mapping[str, tuple[type, ...]] = {"any": (object,), "object": (dict,), "array": (list,)}


class NotJsonError(Exception):
    """The completion is not JSON."""


def json_valid(parameters: JsonValid) -> Scorer:
    def score(rollout: Rollout) -> Score:
        try:
            return passed(isinstance(read_json(rollout.completion, parameters), _KINDS[parameters.kind]))
        except NotJsonError:
            return passed(False)

    return score


def json_fields(parameters: JsonFields) -> Scorer:
    def score(rollout: Rollout) -> Score:
        wanted = _record(rollout, parameters.column)
        if wanted is None:
            return NO_ANSWER
        weights = parameters.weights or dict.fromkeys(wanted, 1.0)
        total = math.fsum(weights.values())
        if not total:
            return NO_ANSWER
        written = _object(rollout.completion, parameters)
        metrics = {"json_fields/parsed": float(written is not None)}
        parts = []
        for number, (name, weight) in enumerate(weights.items()):
            value = None if written is None else written.get(name)
            has_lost_it = value is None and wanted.get(name) is not None
            is_right = written is not None and is_same(value, wanted.get(name), parameters)
            parts.append(weight * (is_right - parameters.null_penalty * has_lost_it))
            if number < MAX_JSON_FIELDS:
                metrics[f"json_fields/{label_of(name)}/match"] = float(is_right)
            if number < MAX_JSON_FIELDS and wanted.get(name) is not None:
                metrics[f"json_fields/{label_of(name)}/null"] = float(has_lost_it)
        return Score(math.fsum(parts) / total, metrics)

    return score


def format_tags(parameters: FormatTags) -> Scorer:
    names = parameters.tags
    blocks = [rf"<{name}>(?P<g{number}>.*?)</{name}>" for number, name in enumerate(names)]
    if parameters.opened:
        blocks[0] = blocks[0].removeprefix(f"<{names[0]}>")
    whole = re.compile(r"\s*" + r"\s*".join(blocks) + r"\s*", re.DOTALL)
    marks = [mark for name in names for mark in (f"<{name}>", f"</{name}>")]
    expected = {mark: marks.count(mark) for mark in marks}
    if parameters.opened:
        expected[marks[0]] -= 1

    def score(rollout: Rollout) -> Score:
        text = rollout.completion
        if any(text.count(mark) != count for mark, count in expected.items()):
            return passed(False)
        match = whole.fullmatch(text)
        return passed(match is not None and all(part.strip() for part in match.groups()))

    return score


@lru_cache(maxsize=1024)
def label_of(field: str) -> str:
    """The field as it stands in names of metrics: two fields never share one, though such names are cleaned and cut."""
    clean = storable(field)
    if clean == field and len(field) <= _LABEL_CHARS:
        return field
    digest = sha256(field.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{clean[: _LABEL_CHARS - len(digest) - 1]}~{digest}"


def read_json(completion: str, parameters: JsonBuiltin) -> Any:
    """The JSON value that the completion is; raises `NotJsonError`."""
    text = read_after(completion, parameters.after)
    if parameters.allow_fence and (fence := last_fence(text)) is not None:
        text = fence
    try:
        return strict_json(text)
    except (ValueError, RecursionError):
        raise NotJsonError from None


def is_same(one: Any, other: Any, parameters: JsonFields) -> bool:
    """Equal as JSON, but for case, order and a tolerance where they are not to matter. Text is stripped."""
    match one, other:
        case str(), str():
            return _folded(one, parameters) == _folded(other, parameters)
        case (bool(), _) | (_, bool()):
            return one is other
        case (int() | float(), int() | float()):
            return _is_close(one, other, parameters.tolerance)
        case list(), list():
            return _same_lists(one, other, parameters)
        case dict(), dict():
            return one.keys() == other.keys() and all(is_same(one[key], other[key], parameters) for key in one)
        case _:
            return one is None and other is None


def _same_lists(one: list[Any], other: list[Any], parameters: JsonFields) -> bool:
    if len(one) != len(other):
        return False
    if not parameters.ignore_order:
        return all(is_same(*pair, parameters) for pair in zip(one, other, strict=True))
    rest = list(other)
    for item in one:
        place = next((place for place, candidate in enumerate(rest) if is_same(item, candidate, parameters)), None)
        if place is None:
            return False
        del rest[place]
    return True


def _is_close(one: float, other: float, tolerance: float) -> bool:
    if one == other:
        return True
    try:
        return bool(abs(one - other) <= tolerance)
    except OverflowError:  # an integer beyond the floats
        return False


def _folded(text: str, parameters: JsonFields) -> str:
    return text.strip().casefold() if parameters.ignore_case else text.strip()


def _object(completion: str, parameters: JsonFields) -> dict[str, Any] | None:
    try:
        value = read_json(completion, parameters)
    except NotJsonError:
        return None
    return value if isinstance(value, dict) else None


def _record(rollout: Rollout, column: str) -> dict[str, Any] | None:
    value = reference(rollout, column)
    if isinstance(value, str):
        try:
            value = strict_json(value)
        except (ValueError, RecursionError):
            raise UnfitDataError(f"the column `{column}` holds text that is not JSON: {value[:60]!r}") from None
    if value is not None and not isinstance(value, dict):
        raise UnfitDataError(f"the column `{column}` holds {type(value).__name__}, not an object")
    return value
