"""When a run is to end before its last step: no signal for a whole window, or no better held-out score for too long."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pydantic import BaseModel, Field

from core.spec import StopSpec


class Silence(BaseModel):
    """It travels with the checkpoints, so that a resumed run ends where it would have ended."""

    shares: list[float] = Field(default_factory=list)
    """Of silent groups, for each of the last steps that generated."""
    has_warned: bool = False

    def add(self, share: float, *, window: int) -> None:
        self.shares = [*self.shares, share][-window:]

    def begin_anew(self) -> None:
        """Somebody has looked at it, or will: only a whole new window says more."""
        self.shares = []


@dataclass(frozen=True, slots=True)
class Ruling:
    then: Literal["warn", "pause", "stop"]
    sentence: str


def judge_silence(rule: StopSpec, silence: Silence) -> Ruling | None:
    """After each step. The window must be full, and a warning is given once."""
    if rule.silent_share_above is None or len(silence.shares) < rule.window or silence.has_warned:
        return None
    share = fmean(silence.shares)
    if share <= rule.silent_share_above:
        return None
    sentence = (
        f"In {share:.1%} of the groups of the last {rule.window} steps all rewards were equal; "
        f"the job's limit is {rule.silent_share_above:.1%}."
    )
    return Ruling(rule.then, sentence)


def judge_patience(rule: StopSpec, scores: Sequence[float | None]) -> Ruling | None:
    """After each evaluation. `scores`: mean held-out rewards in order, the baseline first."""
    known = [score for score in scores if score is not None]
    if rule.held_out_patience is None or not known:
        return None
    since_best = len(known) - 1 - known.index(max(known))
    if since_best < rule.held_out_patience:
        return None
    return Ruling("stop", f"{since_best} evaluations in a row brought no held-out reward above {max(known):.4g}.")
