"""Where the wall time goes: nested, exclusive phases on one monotonic clock."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from typing import ParamSpec, TypeVar

from core.results import PhaseSeconds

P = ParamSpec("P")
T = TypeVar("T")


class Phase(StrEnum):
    LOAD = "load"
    GENERATION = "generation"
    WEIGHT_SYNC = "weight_sync"
    REWARD = "reward"
    LOGPROBS_NO_GRAD = "logprobs_no_grad"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    EXPORT = "export"
    CHECKPOINT = "checkpoint"
    REST = "rest"


class PhaseTimer:
    """Every moment since the timer's start belongs to one phase: the innermost open one, or `rest`.

    So the phases sum to the time that passed, and `rest` is what no phase claimed: data loading, tokenising,
    shuffling, the journal. On CUDA, kernels run behind the Python code that launched them; `synchronize` is called at
    each border so that they count where they belong. TRL reads metrics back from the device in every one of these
    phases, so the borders cost no overlap that it had.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, synchronize: Callable[[], None] = lambda: None
    ) -> None:
        self.synchronize = synchronize
        self._clock = clock
        self._since = clock()
        self._open = [Phase.REST]
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._lap = dict(self._seconds)
        self._longest: dict[Phase, float] = {}
        self._on_change: Callable[[Phase, float, float | None], None] = lambda *_: None

    def tell(self, on_change: Callable[[Phase, float, float | None], None]) -> None:
        """Call `on_change(phase, since, longest_s)` now and whenever another phase begins or the same one beats.

        What was longest so far is forgotten: the imports of a process say nothing about the loading of its model.
        """
        self._longest.clear()
        self._on_change = on_change
        self._announce()

    def beat(self) -> None:
        """A part of a long phase is done: what comes is measured anew, so that a watchdog sees it advance."""
        self._settle()
        self._announce()

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        self.enter(phase)
        try:
            yield
        finally:
            self.leave()

    def enter(self, phase: Phase) -> None:
        """Open a phase that cannot be a `with` block; pairs with `leave`."""
        self._settle()
        self._open.append(phase)
        self._announce()

    def leave(self) -> None:
        self._settle()
        self._open.pop()
        self._announce()

    def timed(self, phase: Phase, function: Callable[P, T]) -> Callable[P, T]:
        """`function`, with every call counted as `phase`."""

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.phase(phase):
                return function(*args, **kwargs)

        return call

    def lap(self) -> dict[Phase, float]:
        """Seconds by phase since the last lap (or the start)."""
        self._settle()
        passed = {phase: self._seconds[phase] - self._lap[phase] for phase in Phase}
        self._lap = dict(self._seconds)
        return passed

    def totals(self) -> PhaseSeconds:
        """Seconds by phase since the start."""
        self._settle()
        return PhaseSeconds(**self._seconds, total=sum(self._seconds.values()))

    def _settle(self) -> None:
        self.synchronize()
        now = self._clock()
        phase, passed = self._open[-1], now - self._since
        self._seconds[phase] += passed
        self._longest[phase] = max(passed, self._longest.get(phase, 0.0))
        self._since = now

    def _announce(self) -> None:
        phase = self._open[-1]
        self._on_change(phase, self._since, self._longest.get(phase))
