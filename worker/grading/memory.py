"""Watches what all processes of a sandbox hold together, from outside, because the kernel's limits count each alone.

A look costs a few small files of /proc, ten times a second. Between two looks a sandbox can grow by what the machine
can write in that time; where that is too much, give the worker's container or service a memory limit of its own.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from worker.grading.limits import Limits

LOOK_EVERY_S = 0.1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Kills the first process of a sandbox, and with it all others, when they hold too much."""

    def __init__(self, init_pid: int, init_pidfd: int, limits: Limits) -> None:
        self._init_pid = init_pid
        self._init_pidfd = init_pidfd
        self._limits = limits
        self._stopped = threading.Event()
        self.reason: str | None = None
        """Why it was killed, once it was."""
        self._thread = threading.Thread(target=self._watch, name=f"memory-of-{init_pid}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Before the process is reaped: after that its number may be somebody else's."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            self.reason = self._excess()
            if self.reason is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init_pidfd, signal.SIGKILL)
                return

    def _excess(self) -> str | None:
        pids = list(tree(self._init_pid))
        cap = self._limits.memory_bytes
        if sum(map(_resident_bytes, pids)) > cap and sum(map(_share_bytes, pids)) > cap:
            return f"held more than {cap / 1024**2:,.0f} MiB of memory in {len(pids)} processes"
        if _files_in_tmp(self._init_pid) > self._limits.files:
            return f"made more than {self._limits.files:,} files"
        return None


def tree(pid: int) -> Iterator[int]:
    """A process and its descendants, as far as they live on while one looks."""
    waiting = [pid]
    while waiting:
        pid = waiting.pop()
        yield pid
        with contextlib.suppress(OSError):
            for task in os.scandir(f"/proc/{pid}/task"):
                with contextlib.suppress(OSError):
                    waiting += map(int, Path(task.path, "children").read_text().split())


def _resident_bytes(pid: int) -> int:
    """Quick, but pages that forked processes share count once for each."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):  # it has just ended
        return 0


def _share_bytes(pid: int) -> int:
    """Proportional: a page that n processes share counts 1/n for each. Slow for large processes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return _resident_bytes(pid)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _files_in_tmp(pid: int) -> int:
    try:
        tmp = os.statvfs(f"/proc/{pid}/root/tmp")
    except OSError:
        return 0
    return tmp.f_files - tmp.f_ffree
