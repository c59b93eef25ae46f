"""Sandboxes that were being made when their worker was killed.

bwrap makes a sandbox's init, writes what it is allowed to be, and only then lets it go on; init asks the kernel to die
with bwrap later still. If both are killed in between (SIGKILL to a whole worker), init waits for ever: idle, with no
code of a user in it, and seen by nobody. A start that fails is cleared away by `worker.grading.sandbox` itself.
"""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger()

PROC = Path("/proc")
_OUR_BOOTSTRAP = b"worker.grading.inside"
_BWRAP = "bwrap"


def sweep() -> None:
    """Kill the inits of sandboxes whose bwrap has gone."""
    for pid in _processes():
        with suppress(OSError):  # it has ended meanwhile, or belongs to another user
            if not _is_init(pid):
                continue
            process = os.pidfd_open(pid)  # from here on the number cannot come to mean another process
            try:
                if _is_orphan(pid):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    log.info("leftover_sandbox_killed", pid=pid)
            finally:
                os.close(process)


def _processes() -> Iterator[int]:
    yield from (int(folder.name) for folder in PROC.iterdir() if folder.name.isdecimal())


def _is_init(pid: int) -> bool:
    """Of a sandbox of ours that has not begun: once it has, it runs Python and not bwrap."""
    status = _status(pid)
    if status.get("Name") != _BWRAP or not status.get("NSpid", "").endswith("\t1"):
        return False
    return _OUR_BOOTSTRAP in PROC.joinpath(str(pid), "cmdline").read_bytes()


def _is_orphan(pid: int) -> bool:
    """Its bwrap is its parent for as long as that lives; then a process that reaps for others is."""
    return _is_init(pid) and _status(int(_status(pid).get("PPid", "0"))).get("Name") != _BWRAP


def _status(pid: int) -> dict[str, str]:
    """proc_pid_status(5); empty when there is no such process. Raises OSError where that cannot be known.

    A name is what its process says it is: any bytes.
    """
    try:
        text = PROC.joinpath(str(pid), "status").read_text("utf-8", "backslashreplace")
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return dict(re.findall(r"^(\w+):\t(.*)$", text, re.MULTILINE))
