"""Calling a built-in as the grading process does."""

from collections.abc import Sequence
from typing import Any

from worker.grading.builtins import load
from worker.grading.grades import Grade, GradeOutcome, Rollout


def rollout(completion: str = "", *, ids: Sequence[int] = (), **columns: Any) -> Rollout:
    return Rollout("What?", completion, list(ids), columns)


def grade(name: str, one: Rollout, **parameters: Any) -> Grade:
    (result,) = load(name, parameters)([one], 0)
    return result


def score(name: str, one: Rollout, **parameters: Any) -> float | None:
    """The value, or None for no answer; fails the test where there was an error."""
    result = grade(name, one, **parameters)
    assert result.outcome in {GradeOutcome.SCORED, GradeOutcome.NO_ANSWER}, result
    return result.value
