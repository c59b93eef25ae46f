"""Sees a trainer that hangs: each phase has a deadline, learned from how long it took before.

A hang is not a crash: the process lives, holds its GPU and says nothing (a stuck collective, a reward that waits for
a server, a generation engine that lost its worker). The lease goes on being renewed, so nobody else would notice.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from core.settings import Settings
from core.status import StatusReason
from worker.run_directory import FailureDetail, Pulse

STARTING = "starting_trainer"
SAMPLING = ("generation", "weight_sync")
"""Phases in which a trainer with `use_vllm` waits for its engine."""


@dataclass(frozen=True, slots=True)
class Hang:
    pulse: Pulse
    stuck_s: float
    deadline_s: float

    def failure(self, last_lines: str) -> FailureDetail:
        before = (
            "had not ended before" if self.pulse.longest_s is None else f"took {self.pulse.longest_s:.1f} s at most"
        )
        message = (
            f"The trainer hung: after step {self.pulse.step}, phase {self.pulse.phase} lasted {self.stuck_s:.0f} s; "
            f"it {before}, and {self.deadline_s:.0f} s were allowed.\n{last_lines}"
        )
        return FailureDetail(
            reason=StatusReason.TRAINER_HUNG,
            code="trainer_hung",
            message=message.rstrip(),
            fix=self._fix,
            retryable=True,
        )

    @property
    def _fix(self) -> str:
        fix = "The stacks in the log say where it waits. If the phase is only slow, raise PODIUM_WATCHDOG_FACTOR."
        if self.pulse.phase in SAMPLING:
            fix += " With use_vllm it is the engine that hangs: a new attempt starts a new one."
        return fix


class Watchdog:
    """Pure but for the clock, which is CLOCK_MONOTONIC as in the pulses."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._start = Pulse(phase=STARTING, since=clock())

    def start(self) -> None:
        """The trainer is started now."""
        self._start = Pulse(phase=STARTING, since=self._clock())

    def current(self, pulse: Pulse | None) -> Pulse:
        """The pulse; before the first, the start of the process."""
        return pulse or self._start

    def deadline_s(self, pulse: Pulse) -> float:
        """What the phase may take: long while nobody knows it, then a multiple of the longest that was seen."""
        if pulse.longest_s is None:
            return self._settings.watchdog_first_s
        return max(self._settings.watchdog_least_s, self._settings.watchdog_factor * pulse.longest_s)

    def look(self, pulse: Pulse | None) -> Hang | None:
        pulse = self.current(pulse)
        stuck_s, deadline_s = self._clock() - pulse.since, self.deadline_s(pulse)
        return Hang(pulse, stuck_s, deadline_s) if stuck_s > deadline_s else None
