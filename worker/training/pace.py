"""How long a step and a save take, as measured: what decides whether a checkpoint still fits into a grace."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REMEMBERED_STEPS = 20


class Pace:
    """One step after another: `begin_step`, `end_step`, and between steps perhaps `saving`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED_STEPS)
        self._step_began: float | None = None
        self.save_cost_s = 0.0
        """What the newest save took; 0 before the first."""

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

    def time_to_safe(self) -> float | None:
        """Seconds until the step under way is done and saved, if it takes as long as the longest of the last ones.

        None while no step has been seen to end. Between two steps only the save is left.
        """
        if self._step_began is None:
            return self.save_cost_s
        if not self._steps_s:
            return None
        passed = self._clock() - self._step_began
        return max(0.0, max(self._steps_s) - passed) + self.save_cost_s
