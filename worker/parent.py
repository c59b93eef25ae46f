"""No orphans: a child asks the kernel for a signal at its parent's death (PR_SET_PDEATHSIG, prctl(2)).

The child asks for itself, because code between fork and exec must not run in a parent that has threads. A parent
that died before the child asked is noticed by its process id. A program that knows nothing of this is started by
`python worker/parent.py PROGRAM ARGUMENT...`, which asks, and then becomes it: the kernel remembers across exec.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

PARENT_PID_VARIABLE = "PODIUM_PARENT_PID"
_PR_SET_PDEATHSIG = 1


def parent_environment() -> dict[str, str]:
    """What a parent adds to the environment of a child that calls `die_with_parent`."""
    return {PARENT_PID_VARIABLE: str(os.getpid())}


def killed_with_parent(program: Path, *arguments: str) -> list[str]:
    """The command that runs `program` so that it is killed when its parent dies; needs `parent_environment`."""
    return [sys.executable, "-I", "-S", __file__, str(program), *arguments]


def die_with_parent(death_signal: signal.Signals) -> None:
    """Send this process `death_signal` when the parent that is named in its environment is no more.

    Harmless when nobody is named: then a person started it.
    """
    named = os.environ.pop(PARENT_PID_VARIABLE, None)
    if named is not None:
        die_with(int(named), death_signal)


def die_with(parent_pid: int, death_signal: signal.Signals) -> None:
    """Send this process `death_signal` when the thread that started it ends, or at once if it has ended already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), death_signal)


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what the parent blocks for itself would be inherited
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the program is the operator's own interpreter
