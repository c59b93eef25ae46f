"""SIGTERM and SIGINT: remembered, or heard at once by a thread of its own, whatever the main thread waits for.

Who works in short rounds looks at `remembered` in between. Who may wait long has to be `listening`: a Python handler
runs in the main thread between two bytecodes, not while that thread is inside a call to a silent server. So both
signals are `blocked`, and one thread takes them by sigtimedwait(2). Threads and processes that are started meanwhile
inherit the block; `worker.parent` lifts it for programs.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_POLL_S = 0.2


def remembered(*signals: signal.Signals) -> threading.Event:
    """Set by the first of them, by default SIGTERM or SIGINT. For the main thread."""
    told = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        told.set()

    for number in signals or STOP_SIGNALS:
        signal.signal(number, handle)
    return told


@contextmanager
def blocked() -> Iterator[None]:
    """Signals stay pending; those that nobody has taken act at the end of the block. For the main thread."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def listening(on_signal: Callable[[], None]) -> Iterator[None]:
    """Call `on_signal` for each signal, from a thread. Inside `blocked()`, before other threads are started."""
    ended = threading.Event()

    def listen() -> None:
        while not ended.is_set():
            if signal.sigtimedwait(STOP_SIGNALS, _POLL_S) is not None:
                on_signal()

    thread = threading.Thread(target=listen, name="stop-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=1)  # it may still be in `on_signal`
