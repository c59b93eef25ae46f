"""No orphans: a child asks the kernel for a signal at its parent's death (PR_SET_PDEATHSIG, prctl(2)).

The child asks for itself, because code between fork and exec must not run in a parent that has threads. A parent
that died before the child asked is noticed by its process id.
"""

import ctypes
import os
import signal

PARENT_PID_VARIABLE = "PODIUM_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def parent_environment() -> dict[str, str]:
    """What a parent adds to the environment of a child that calls `die_with_parent`."""
    return {PARENT_PID_VARIABLE: str(os.getpid())}


def die_with_parent(death_signal: signal.Signals) -> None:
    """Send this process `death_signal` when the parent that is named in its environment is no more.

    Harmless when nobody is named: then a person started it.
    """
    named = os.environ.pop(PARENT_PID_VARIABLE, None)
    if named is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(named):
        os.kill(os.getpid(), death_signal)
