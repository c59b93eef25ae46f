"""Being told to stop, and obeying where nothing is lost: SIGTERM is in a hurry, SIGINT leaves the time it takes."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import NoReturn


class Stopped(Exception):
    """Told to stop while no step is being trained: what was under way can be done again."""


class TrainingOver(Exception):
    """A rule of the job ends training where no step is under way: the final evaluation comes next."""


class StopRequest:
    """Whether this process was told to stop. Training asks at each step's end, evaluations after each batch.

    SIGTERM grants `grace_s` seconds. Where the step and its checkpoint do not fit into them, the process saves the step
    before it, if it is not, and leaves at once: the rest of the step would be paid for and lost. Likewise where there
    is nothing to save.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.time_to_safe: Callable[[], float | None] = lambda: None
        """Seconds until all that was done is saved; None where nobody can say."""
        self.save_last_step: Callable[[float], None] = lambda _grace_s: None
        """Called in the middle of a step that will not be finished, to save the one before it."""
        self._leave: Callable[[float], NoReturn] | None = None
        self._grace_s = 0.0
        self.worth_finishing = False
        """Whether to leave at once would lose what can still be saved: steps, or a result that is being written."""

    def listen(self) -> None:
        """Take SIGTERM (the supervisor, in a hurry) and SIGINT (a pause, or Ctrl+C) instead of dying of them."""
        signal.signal(signal.SIGTERM, self._hurry)
        signal.signal(signal.SIGINT, self._remember)

    def arm(self, leave: Callable[[float], NoReturn], *, grace_s: float) -> None:
        """From now on `leave(needed_s)` ends the process where the grace is too short, or nothing is to be saved."""
        self._leave, self._grace_s = leave, grace_s

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
        if not self.worth_finishing:
            self._leave(0.0)
        needed_s = self.time_to_safe()
        if needed_s is not None and needed_s > self._grace_s:
            self.save_last_step(self._grace_s)
            self._leave(needed_s)
