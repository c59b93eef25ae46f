"""Built-in rewards by name: parameters in, a function from rollouts to grades out. Runs inside the grading process."""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from core.builtin_rewards.catalogue import parse_builtin
from worker.grading.budget import begun_within
from worker.grading.builtins.outcomes import Score, UndecidedError, UnfitDataError
from worker.grading.grades import Grade, GradeOutcome, Rollout

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "answers": ("exact_match", "numeric", "regex", "contains", "multiple_choice"),
    "mathematics": ("math",),
    "schemas": ("json_schema",),
    "shape": ("length", "overlong", "repetition"),
    "similarity": ("text_similarity", "string_check"),
    "structure": ("json_valid", "json_fields", "format_tags"),
}
"""Modules and their rewards: a grading process loads only what its own reward needs (math-verify takes a second)."""
_MODULES = {name: f"{__package__}.{family}" for family, names in _FAMILIES.items() for name in names}

Grader = Callable[..., list[Grade]]
"""Called like `worker.grading.signatures.call`: rollouts and the trainer's step in, one grade each out."""


class UnknownBuiltinError(ValueError):
    """No built-in of this name runs inside the grading process, or its parameters are not valid."""


def load(name: str, parameters: Mapping[str, Any]) -> Grader:
    """The built-in `name` with these parameters (as JSON); raises `UnknownBuiltinError`.

    The function never raises for what is in a rollout.
    """
    if name not in _MODULES:
        raise UnknownBuiltinError(f"no built-in reward {name!r} runs here")
    try:
        checked = parse_builtin({"builtin": name, **parameters})
        score = getattr(importlib.import_module(_MODULES[name]), name)(checked)
    except (ValidationError, UnfitDataError) as error:
        raise UnknownBuiltinError(f"the built-in reward {name!r} cannot be made: {error}") from None

    def grade(
        rollouts: Sequence[Rollout],
        step: int,  # noqa: ARG001 - as all are called
        *,
        item_deadline_s: float | None = None,  # noqa: ARG001 - built-ins bound their own work
        budget_s: float | None = None,
    ) -> list[Grade]:
        return [grade_one(score, rollout) for rollout in begun_within(rollouts, budget_s)]

    return grade


def grade_one(score: Callable[[Rollout], Score], rollout: Rollout) -> Grade:
    started = time.perf_counter()
    grade = _grade(score, rollout)
    return replace(grade, latency_s=time.perf_counter() - started)


def _grade(score: Callable[[Rollout], Score], rollout: Rollout) -> Grade:
    try:
        result = score(rollout)
    except UnfitDataError as error:
        return Grade(GradeOutcome.USER_ERROR, message=str(error))
    except UndecidedError as error:
        return Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message=str(error), timed_out=True)
    except Exception as error:  # noqa: BLE001 - a fault of ours or of a library costs one rollout, not the batch
        return Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message=f"{type(error).__name__}: {error}"[:500])
    if result.value is None:
        return Grade(GradeOutcome.NO_ANSWER, metrics=result.metrics)
    return Grade(GradeOutcome.SCORED, float(result.value), result.metrics)
