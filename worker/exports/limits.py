"""A client that hangs takes its process with it, and nothing else."""

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

_STDERR = 2


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """End this process, with its stacks in the log, if the block takes longer.

    By a thread of C: it needs no interpreter lock, which a hanging library may hold (faulthandler).
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=_STDERR)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
