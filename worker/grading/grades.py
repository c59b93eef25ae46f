"""What goes into a grading and what comes out of it. Plain values, the same on both sides of the pipe."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from core.chat import ChatMessage


@dataclass(frozen=True, slots=True)
class Rollout:
    """One completion to grade."""

    prompt: str | list[ChatMessage]
    completion: str
    """The model's text, without special tokens."""
    completion_ids: list[int]
    columns: Mapping[str, Any]
    """The row's columns: JSON values."""


class GradeOutcome(StrEnum):
    SCORED = "scored"
    NO_ANSWER = "no_answer"
    """The reward returned None: it does not apply to this rollout."""
    USER_ERROR = "user_error"
    """The reward raised, or returned what is not a finite number."""
    INFRASTRUCTURE_ERROR = "infrastructure_error"
    """The grading process crashed, hung or could not be started: nothing is known about the rollout."""


@dataclass(frozen=True, slots=True)
class Grade:
    """One reward's word on one rollout. Anything but `scored` has no value: a failure is never a zero."""

    outcome: GradeOutcome
    value: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers that the reward reported beside its value, by name."""
    message: str | None = None
    """For the error outcomes, one line."""
    traceback: str | None = None
    """The frames in the reward's own source."""
    latency_s: float = 0.0
    """Time in the reward; a batch call's time is shared evenly among its rollouts."""
    timed_out: bool = False
    """Of an infrastructure error: whether it is that no answer came in time."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the reward told of this rollout (TRL's `log_extra`, texts beside a score): JSON scalars."""

    def __post_init__(self) -> None:
        scored = self.outcome is GradeOutcome.SCORED
        if scored != (self.value is not None) or (self.value is not None and not math.isfinite(self.value)):
            raise ValueError(f"a grade with outcome {self.outcome} cannot have the value {self.value}")

    @property
    def is_error(self) -> bool:
        return self.outcome in {GradeOutcome.USER_ERROR, GradeOutcome.INFRASTRUCTURE_ERROR}


def combine(grades: Mapping[str, Grade], weights: Mapping[str, float]) -> float | None:
    """The weighted sum of one rollout's grades by reward name; None when it has no reward.

    An error in any term blanks the rollout: a sum without that term would compare unlike things within the group.
    Terms without an answer are left out, as TRL does (`_calculate_rewards`, nansum). Those of weight 0 are watched, and
    say nothing: where no other has an answer there is no reward, and not one of 0.
    """
    if any(grade.is_error for grade in grades.values()):
        return None
    terms = [weights[name] * grade.value for name, grade in grades.items() if grade.value is not None and weights[name]]
    return math.fsum(terms) if terms else None
