"""What a rule says of a run."""

from dataclasses import dataclass, field
from enum import StrEnum

from core.learning.numbers import Change, RunNumbers

CERTAIN = 4.0
"""Standard errors. The steps of a run are not independent, so two or three say less than they seem to."""


FindingKey = tuple[str, str | None]
"""Code and subject: the same trouble, however often it is found."""


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class LearningFinding:
    code: str
    severity: Severity
    sentence: str
    fix: str
    try_next: str
    """What would teach this model more, where mending the setting is not enough."""
    since_step: int | None = None
    """Where it begins to show; None for what holds for the run as a whole."""
    evidence: dict[str, float | int | None] = field(default_factory=dict)
    subject: str | None = None
    """The watched field that it is about; a code that can be found of several is told of each."""

    @property
    def key(self) -> FindingKey:
        return self.code, self.subject


def rises(change: Change | None) -> bool:
    return change is not None and change.z >= CERTAIN


def held_out_improved(run: RunNumbers) -> bool:
    """Beyond chance."""
    gain = run.gain()
    return gain is not None and gain.is_certain


def rise_without_held_out(run: RunNumbers) -> Change | None:
    """How the reward rose in training until the last evaluation, where the held-out tasks gained less than half of it,
    and are not as high. By the whole interval of their gain: a few tasks, or a small rise, say nothing.
    """
    gain = run.gain()
    if gain is None:
        return None
    last = run.scored[-1]
    change = run.up_to(last.step).change("reward")
    if change is None or not rises(change):
        return None
    lags = gain.at_most < change.difference / 2 and (last.mean_reward or 0.0) < change.late
    return change if lags else None
