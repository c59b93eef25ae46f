"""Being told to stop: SIGTERM is remembered, and obeyed where nothing is lost."""

import signal
from types import FrameType


class Stopped(Exception):
    """Told to stop while no step is being trained: what was under way can be done again."""


class StopRequest:
    """Whether this process was told to stop. Training asks at each step's end, evaluations after each batch."""

    def __init__(self) -> None:
        self.wanted = False

    def listen(self) -> None:
        """Remember SIGTERM (the supervisor) and SIGINT (Ctrl+C in a terminal) instead of dying of them."""
        signal.signal(signal.SIGTERM, self._remember)
        signal.signal(signal.SIGINT, self._remember)

    def check(self) -> None:
        """Raise `Stopped` if told to."""
        if self.wanted:
            raise Stopped

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
