"""How long steps, saves and uploads take, as measured: what decides whether a checkpoint still fits into a grace."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from worker.run_directory import LAST_UPLOAD_S

REMEMBERED_STEPS = 20


@dataclass(frozen=True, slots=True)
class Need:
    """Seconds until all that was done is durable."""

    step_s: float
    """For the rest of what is under way, as a rule a step; infinite where nobody can say."""
    save_s: float
    upload_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.step_s + self.save_s + self.upload_s

    @property
    def without_the_step(self) -> "Need":
        """What it takes to leave what is under way, and to save the last step that was done."""
        return replace(self, step_s=0.0)

    def fits(self, grace_s: float) -> bool:
        """The trainer has the grace. The upload has what that leaves, or the moment that is granted in any case."""
        left_s = grace_s - self.step_s - self.save_s
        return left_s >= 0 and self.upload_s <= max(left_s, LAST_UPLOAD_S)


class Pace:
    """One step after another: `begin_step`, `end_step`, and between steps perhaps `saving`."""

    def __init__(self, save_cost_s: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._step_began: float | None = None
        self.is_saving = False
        self.save_cost_s = save_cost_s
        """What the newest save took, if need be an earlier attempt's; 0 before the first."""

    @property
    def in_step(self) -> bool:
        return self._step_began is not None

    def begin_step(self) -> None:
        self._step_began = self._clock()

    def end_step(self) -> None:
        if self._step_began is not None:
            self._steps_s.append(self._clock() - self._step_began)
        self._step_began = None

    @contextmanager
    def saving(self) -> Iterator[Callable[[], float]]:
        """Gives what tells how many seconds it has taken so far."""
        began, self.is_saving = self._clock(), True
        try:
            yield lambda: self._clock() - began
        finally:
            self.is_saving = False
        self.save_cost_s = self._clock() - began

    def time_to_safe(self) -> Need:
        """The rest of the step under way, if it takes as long as the longest of the last ones, and its save.

        Of a step that has taken longer, or that none was seen to end before, nobody knows when it will end.
        Between two steps only the save is left.
        """
        if self._step_began is None:
            return Need(0.0, self.save_cost_s)
        left_s = max(self._steps_s, default=-math.inf) - (self._clock() - self._step_began)
        return Need(left_s if left_s >= 0 else math.inf, self.save_cost_s)
