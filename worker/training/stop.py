"""Being told to stop, and obeying where nothing is lost: SIGTERM is in a hurry, SIGINT leaves the time it takes."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import FrameType
from typing import NoReturn

from worker.training.pace import Need


class Stopped(Exception):
    """Told to stop while no step is being trained: what was under way can be done again."""


class TrainingOver(Exception):
    """A rule of the job ends training where no step is under way: the final evaluation comes next."""


class StopChoice(StrEnum):
    FINISH = "finish"
    """The step, its save and its upload fit."""
    SAVE_LAST = "save_last"
    """The step does not fit, or nobody can say; what was done before it does."""
    LEAVE = "leave"
    """Not even that: what is not durable yet is done again."""


@dataclass(frozen=True, slots=True)
class Decision:
    choice: StopChoice
    need: Need
    grace_s: float


def decide(need: Need, grace_s: float) -> Decision:
    if need.fits(grace_s):
        return Decision(StopChoice.FINISH, need, grace_s)
    return Decision(StopChoice.SAVE_LAST if need.without_the_step.fits(grace_s) else StopChoice.LEAVE, need, grace_s)


class StopRequest:
    """Whether this process was told to stop. Training asks at each step's end, evaluations after each batch.

    SIGTERM grants `grace_s` seconds. Where the step, its checkpoint and the upload of that do not fit into them, the
    process saves the step before it, if it is not and that fits, and leaves at once: the rest of the step would be paid
    for and lost. Likewise in an evaluation, and where there is nothing to save.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.is_saved: Callable[[], bool] = lambda: False
        """Whether no step is under way, and the last one is saved."""
        self.time_to_safe: Callable[[], Need | None] = lambda: None
        """Until all that was done is durable; None where nobody can say."""
        self.save_last_step: Callable[[], bool] = lambda: False
        """Called in the middle of what will not be finished, to save the last step that was; whether it is saved."""
        self._leave: Callable[[], NoReturn] | None = None
        self._tell: Callable[[Decision], None] = lambda _decision: None
        self._grace_s = 0.0
        self.worth_finishing = False
        """Whether to leave at once would lose what can still be saved: steps, or a result that is being written."""

    def listen(self) -> None:
        """Take SIGTERM (the supervisor, in a hurry) and SIGINT (a pause, or Ctrl+C) instead of dying of them."""
        signal.signal(signal.SIGTERM, self._hurry)
        signal.signal(signal.SIGINT, self._remember)

    def arm(self, leave: Callable[[], NoReturn], tell: Callable[[Decision], None], *, grace_s: float) -> None:
        """From now on `leave()` ends the process where the grace is too short, or nothing is to be saved; `tell` hears
        what was decided about a step.
        """
        self._leave, self._tell, self._grace_s = leave, tell, grace_s

    def write_result(self) -> None:
        """From now on what is under way is finished, however long it takes: steps there are none any more."""
        self.worth_finishing = True
        self.is_saved, self.time_to_safe = lambda: False, lambda: None

    def check(self) -> None:
        """Raise `Stopped` if told to."""
        if self.wanted:
            raise Stopped

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True

    def _hurry(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        if self._leave is None:
            return
        if not self.worth_finishing or self.is_saved():
            self._leave()
        need = self.time_to_safe()
        if need is None:
            return
        decision = decide(need, self._grace_s)
        if decision.choice is StopChoice.SAVE_LAST and not self.save_last_step():
            decision = replace(decision, choice=StopChoice.LEAVE)
        self._tell(decision)
        if decision.choice is not StopChoice.FINISH:
            self._leave()
