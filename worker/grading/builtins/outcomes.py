"""What built-in rewards answer, and how they read a rollout."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from worker.grading.grades import Rollout


@dataclass(frozen=True, slots=True)
class Score:
    value: float | None
    """None: the reward does not apply to this row."""
    metrics: Mapping[str, float] = field(default_factory=dict)


NO_ANSWER = Score(None)
PATTERN_TIMEOUT_S = 1.0
"""For one search of a user's pattern; a pattern that takes longer is the user's to mend."""
Scorer = Callable[[Rollout], Score]


class UnfitDataError(Exception):
    """The row, or a parameter, is not what the reward needs: for people to mend, never the completion's fault."""


class UndecidedError(Exception):
    """A library has not come to an end in its time: nothing is known about the completion."""


def passed(value: bool) -> Score:
    return Score(1.0 if value else 0.0)


def read_after(completion: str, marker: str | None) -> str:
    """What stands after the last `marker`; nothing where it is not."""
    return completion if marker is None else completion.rpartition(marker)[2] if marker in completion else ""


def last_fence(text: str) -> str | None:
    """What stands in the last closed Markdown fence of backticks, in time linear in the text (no pattern is)."""
    fence: str | None = None
    lines: list[str] | None = None
    for line in text.split("\n"):
        if lines is None:
            lines = [] if line.startswith("```") and "`" not in line[3:] else None
        elif line.startswith("```") and not line[3:].strip():
            fence, lines = "".join(lines), None
        else:
            lines.append(f"{line}\n")
    return fence


def reference(rollout: Rollout, column: str) -> Any:
    """The value of the row's column; None where it is null. Raises `UnfitDataError` where the row lacks it."""
    try:
        return rollout.columns[column]
    except KeyError:
        raise UnfitDataError(f"the row has no column `{column}`") from None


def reference_texts(rollout: Rollout, column: str) -> list[str]:
    """The column as texts: one, or each of a list's. Empty where it is null; raises `UnfitDataError`."""
    value = reference(rollout, column)
    values = value if isinstance(value, list) else [value]
    return [_text(one, column) for one in values if one is not None]


def _text(value: object, column: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise UnfitDataError(f"the column `{column}` holds {type(value).__name__}, not text, a number or a list of these")
