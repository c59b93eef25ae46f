"""Answers that are equal as mathematics, by math-verify. Its time limits are alarms: main thread only."""

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from math_verify.errors import TimeoutException

from core.builtin_rewards.answers import Math
from worker.grading.builtins.answers import last_boxed
from worker.grading.builtins.outcomes import (
    NO_ANSWER,
    Score,
    Scorer,
    UndecidedError,
    UnfitDataError,
    passed,
    read_after,
    reference_texts,
)
from worker.grading.grades import Rollout

TIMEOUT_S = 1
"""For reading a completion, and for comparing it. In whole seconds: `signal.alarm` takes no others."""
REFERENCE_TIMEOUT_S = 5
MAX_CHARS = 20_000
"""The end of a completion that is read."""
_ANCHORS = ("$", "\\boxed", "\\(", "\\[", "####")
_PROSE = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\s+[A-Za-z]{2,}\b")


def math(parameters: Math) -> Scorer:
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of each time limit with the whole text
    verify(read_reference("x + 1"), read_answer("$1 + x$", boxed=False))  # makes the grammar's tables: most of a second

    gold = lru_cache(maxsize=1024)(read_reference)  # a group shares its reference

    def golds(rollout: Rollout) -> list[list[Any]]:
        wanted = []
        for text in reference_texts(rollout, parameters.column):
            try:
                parsed = gold(text)
            except TimeoutException:  # not remembered: the machine may have been busy
                what = f"could not be read within {REFERENCE_TIMEOUT_S} s"
                raise UndecidedError(f"the column `{parameters.column}` {what}: {text[:80]!r}") from None
            if not parsed:
                raise UnfitDataError(f"the column `{parameters.column}` has no mathematics: {text[:80]!r}")
            wanted.append(parsed)
        return wanted

    def score(rollout: Rollout) -> Score:
        wanted = golds(rollout)
        if not wanted:
            return NO_ANSWER
        try:
            answer = read_answer(read_after(rollout.completion, parameters.after), boxed=parameters.boxed)
        except TimeoutException:
            raise UndecidedError(f"the completion could not be read as mathematics within {TIMEOUT_S} s") from None
        return passed(is_any_equal(wanted, answer))

    return score


def read_reference(text: str) -> list[Any]:
    """What math-verify reads in a reference; a bare `x^2 + 1` is taken for LaTeX, as answer columns write it.

    Raises `TimeoutException`.
    """
    is_bare = not any(mark in text for mark in _ANCHORS) and not _PROSE.search(text)
    parsed = _parse(f"${text}$", REFERENCE_TIMEOUT_S) if is_bare else []
    return parsed or _parse(text, REFERENCE_TIMEOUT_S)


def read_answer(completion: str, *, boxed: bool) -> list[Any]:
    """Raises `TimeoutException`."""
    if boxed:
        found = last_boxed(completion)
        return [] if found is None else _parse(f"\\boxed{{{found}}}", TIMEOUT_S)
    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return _parse(completion[-MAX_CHARS:], TIMEOUT_S, extraction_config=configs)


def is_any_equal(golds: Sequence[Sequence[Any]], answer: Sequence[Any]) -> bool:
    """Whether one pair is equal; raises `UndecidedError` where none is and one took too long."""
    is_undecided = False
    for one, other in ((one, other) for parsed in golds for one, other in product(parsed, answer)):
        try:
            if _is_equal(one, other):
                return True
        except TimeoutException:
            is_undecided = True
    if is_undecided:
        raise UndecidedError(f"the answer could not be compared with the reference within {TIMEOUT_S} s")
    return False


def _parse(text: str, timeout_s: int, **options: Any) -> list[Any]:
    """math-verify answers [] both for what it cannot read and for what took too long; here the second is raised."""
    try:
        return list(parse(text, parsing_timeout=timeout_s, raise_on_error=True, **options))
    except MemoryError:  # says nothing about the text
        raise
    except Exception:  # noqa: BLE001 - whatever its grammar and sympy raise for a text: it is not mathematics
        return []


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(verify(one, other, timeout_seconds=TIMEOUT_S, raise_on_error=True))
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever sympy raises for a pair: it cannot be called equal
        return False
