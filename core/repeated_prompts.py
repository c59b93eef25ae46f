"""Rows with the same prompt are one task."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean
from typing import TypeVar

_Row = TypeVar("_Row")


def by_prompt(rows: Iterable[tuple[str, _Row]]) -> list[list[_Row]]:
    """Rows under the hashes of their prompts, in the order in which the prompts first appear."""
    grouped: dict[str, list[_Row]] = defaultdict(list)
    for prompt, row in rows:
        grouped[prompt].append(row)
    return list(grouped.values())


def most(passed: Iterable[bool]) -> bool:
    """Whether a task passed: more than half of its rows did."""
    return fmean(passed) > 0.5
