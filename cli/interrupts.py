"""Ctrl+C, SIGTERM and a closed terminal all mean the same: stop in good order.

The signal raises KeyboardInterrupt wherever the program is, so that nothing blocks it. It is also remembered, because
that exception can get lost on its way up, in a `finally` that fails or in a callback.
"""

import signal
import time
from threading import Event
from types import FrameType

_told = Event()


def stop_when_told() -> None:
    """Install the handlers; a signal that whoever started us chose to ignore stays ignored."""
    for told in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(told) is not signal.SIG_IGN:
            signal.signal(told, _tell)


def pause(seconds: float) -> None:
    """Sleep in a loop that goes on until it is told to stop. Raises KeyboardInterrupt."""
    if _told.is_set():
        raise KeyboardInterrupt
    time.sleep(seconds)


def _tell(_signal: int, _frame: FrameType | None) -> None:
    _told.set()
    raise KeyboardInterrupt
