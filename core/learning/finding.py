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
    scored = [one for one in run.held_out if one.mean_reward is not None]
    return len(scored) > 1 and (scored[-1].mean_reward or 0.0) > (scored[0].mean_reward or 0.0)
