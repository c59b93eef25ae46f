"""When to save by the clock: often enough that little is lost, seldom enough that saving costs little.

With saves of C seconds and M seconds between preemptions on average, the interval that wastes least is sqrt(2 C M)
(J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974).
"""

import math
import time
from collections.abc import Callable
from typing import Literal

SHORTEST_S = 30.0
LONGEST_S = 3600.0
FIRST_S = 60.0
"""Until a save has been measured."""


def checkpoint_interval_s(save_cost_s: float, mean_time_between_preemptions_s: float) -> float:
    best = math.sqrt(2 * save_cost_s * mean_time_between_preemptions_s)
    return min(max(best, SHORTEST_S), LONGEST_S)


class SaveClock:
    """Knows when a save is due; is told of every save, whatever it was made for."""

    def __init__(
        self,
        every_minutes: float | Literal["auto"] | None,
        mean_time_between_preemptions_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_minutes = every_minutes
        self._mean_time_s = mean_time_between_preemptions_s
        self._clock = clock
        self._saved_at = clock()
        self._cost_s: float | None = None

    def begin(self) -> None:
        """Training begins, or goes on after something long: nothing before this is unsaved."""
        self._saved_at = self._clock()

    def note_save(self, cost_s: float) -> None:
        """A save has just ended that took so long."""
        self._saved_at = self._clock()
        self._cost_s = cost_s

    @property
    def interval_s(self) -> float | None:
        """Seconds between two saves; None where only steps decide."""
        if self._every_minutes is None:
            return None
        if self._every_minutes != "auto":
            return 60 * self._every_minutes
        return FIRST_S if self._cost_s is None else checkpoint_interval_s(self._cost_s, self._mean_time_s)

    def is_due(self) -> bool:
        interval_s = self.interval_s
        return interval_s is not None and self._clock() - self._saved_at >= interval_s
