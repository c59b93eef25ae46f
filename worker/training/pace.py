"""How long steps, saves and uploads take, as measured: what decides whether a checkpoint still fits into a grace."""

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
    """For the rest of the step under way."""
    save_s: float
    upload_s: float = 0.0

    @property
    def total_s(self) -> float:
        return self.step_s + self.save_s + self.upload_s

    @property
    def without_the_step(self) -> "Need":
        """What it takes to leave the step under way, and to save the one before it."""
        return replace(self, step_s=0.0)

    def fits(self, grace_s: float) -> bool:
        """The trainer has the grace. The upload has what that leaves, or the moment that is granted in any case."""
        left_s = grace_s - self.step_s - self.save_s
        return left_s >= 0 and self.upload_s <= max(left_s, LAST_UPLOAD_S)


class Pace:
    """One step after another: `begin_step`, `end_step`, and between steps perhaps `saving`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._step_began: float | None = None
        self.save_cost_s = 0.0
        """What the newest save took; 0 before the first."""

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
    def saving(self) -> Iterator[None]:
        began = self._clock()
        yield
        self.save_cost_s = self._clock() - began

    def time_to_safe(self) -> Need | None:
        """The rest of the step under way, if it takes as long as the longest of the last ones, and its save.

        None while no step has been seen to end. Between two steps only the save is left.
        """
        if self._step_began is None:
            return Need(0.0, self.save_cost_s)
        if not self._steps_s:
            return None
        passed = self._clock() - self._step_began
        return Need(max(0.0, max(self._steps_s) - passed), self.save_cost_s)
