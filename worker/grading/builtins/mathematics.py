"""Answers that are equal as mathematics, by math-verify. Its time limits are alarms: main thread only."""

import logging
import re
import time
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

from core.builtin_rewards.answers import Math
from worker.grading.builtins.answers import last_boxed
from worker.grading.builtins.outcomes import NO_ANSWER, Score, Scorer, UnfitDataError, read_after, reference_texts
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

    @lru_cache(maxsize=1024)  # a group shares its reference
    def gold(text: str) -> list[Any]:
        return read_reference(text)

    def score(rollout: Rollout) -> Score:
        wanted = reference_texts(rollout, parameters.column)
        if not wanted:
            return NO_ANSWER
        golds = [gold(text) for text in wanted]
        for text, parsed in zip(wanted, golds, strict=True):
            if not parsed:
                raise UnfitDataError(f"the column `{parameters.column}` has no mathematics: {text[:80]!r}")
        started = time.monotonic()
        answer = read_answer(read_after(rollout.completion, parameters.after), boxed=parameters.boxed)
        is_right = bool(answer) and any(verify(one, answer, timeout_seconds=TIMEOUT_S) for one in golds)
        is_undecided = not is_right and time.monotonic() - started >= TIMEOUT_S
        return Score(float(is_right), {"math/undecided": float(is_undecided)})

    return score


def read_reference(text: str) -> list[Any]:
    """What math-verify reads in a reference; a bare `x^2 + 1` is taken for LaTeX, as answer columns write it."""
    is_bare = not any(mark in text for mark in _ANCHORS) and not _PROSE.search(text)
    parsed = parse(f"${text}$", parsing_timeout=REFERENCE_TIMEOUT_S) if is_bare else []
    return list(parsed or parse(text, parsing_timeout=REFERENCE_TIMEOUT_S))


def read_answer(completion: str, *, boxed: bool) -> list[Any]:
    if boxed:
        found = last_boxed(completion)
        return [] if found is None else list(parse(f"\\boxed{{{found}}}", parsing_timeout=TIMEOUT_S))
    tail = completion[-MAX_CHARS:]
    configs = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return list(parse(tail, extraction_config=configs, parsing_timeout=TIMEOUT_S))
