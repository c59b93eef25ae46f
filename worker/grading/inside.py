"""The first program in a sandbox: init of its process namespace, and the jailer of the process that runs reward code.

bwrap has made the namespaces, the read-only root and the filter of system calls. What is left is done here, before any
reward code is read: limits that count only from now on, and Landlock.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Never

from worker.grading import landlock
from worker.grading.limits import Limits

_PR_GET_SECCOMP, _PR_GET_NO_NEW_PRIVS = 21, 39
WORKER_PID = 2
"""Of the first process that init makes."""
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""Array libraries would start a thread for every core of the host, and reserve memory for each."""


def main() -> None:
    """`argv[1:]` is the descriptor of the connected socket and the limits as JSON."""
    descriptor = int(sys.argv[1])
    worker_pid = os.fork()
    if worker_pid != 0:
        os.close(descriptor)
        _be_init(worker_pid)
    confine(Limits(**json.loads(sys.argv[2])))
    from worker.grading import child  # noqa: PLC0415 - init needs none of it, and reading it is confined already

    child.run(descriptor, tidy_up=end_leftovers)


def probe() -> None:
    """Confine this process in the same way, and print what holds it; `argv[1]` is the limits as JSON."""
    print(json.dumps(confine(Limits(**json.loads(sys.argv[1])))))  # noqa: T201 - the answer


def confine(limits: Limits) -> dict[str, int]:
    """What of it is active, as the kernel tells it. Raises OSError."""
    limits.apply()
    roots = {path for path in Path("/").iterdir() if path.name not in {"dev", "tmp"}}
    version = landlock.restrict(roots, {Path("/tmp"), *Path("/dev").iterdir()})  # noqa: S108 - the sandbox's own
    for name in _ONE_THREAD:
        os.putenv(name, "1")  # for libraries in C; Python code sees an empty environment
    prctl = ctypes.CDLL(None).prctl
    return {
        "landlock": version,
        "seccomp": prctl(_PR_GET_SECCOMP, 0, 0, 0, 0),
        "no_new_privs": prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
    }


def end_leftovers() -> None:
    """Kill every process but this one and init: none outlives the request that started it.

    Otherwise a reward could keep the cores busy between its turns.
    """
    if os.getpid() != WORKER_PID:  # a forked copy of this loop, or no namespace of our own: -1 would mean the host
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def _be_init(worker_pid: int) -> Never:
    """Reap whatever ends, and end with the worker: then the kernel ends everybody else in here."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == worker_pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
