"""Watches what all processes of a sandbox hold together, from outside, because the kernel's limits count each alone.

It is what bounds a sandbox where there is no cgroup for it (`worker.grading.cgroup`); with one, only files are counted.
A look costs a few small files of /proc, ten times a second. Between two looks a sandbox can grow by what the machine
can write in that time; where that is too much, give the worker's container or service a memory limit of its own.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

from worker.grading.limits import Limits

LOOK_EVERY_S = 0.1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Accounting(StrEnum):
    """How the memory of a sandbox is counted."""

    CGROUP = "cgroup"
    """By the kernel, exactly."""
    SHARED_ONCE = "shared_once"
    """By the watch; pages that several processes share count once."""
    RESIDENT = "resident"
    """By the watch, which may not trace the processes (CAP_SYS_PTRACE): shared pages count once for each."""


class MemoryWatch:
    """Kills the first process of a sandbox, and with it all others, when they hold too much."""

    def __init__(self, init_pid: int, init_pidfd: int, limits: Limits, *, counts_memory: bool = True) -> None:
        """Raises OSError where memory is to be counted and cannot be seen."""
        if counts_memory:
            _read_resident(init_pid)
        self._counts_memory = counts_memory
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
        pids = list(tree(self._init_pid)) if self._counts_memory else []
        cap = self._limits.memory_bytes
        if sum(map(_resident_bytes, pids)) > cap and sum(map(_share_bytes, pids)) > cap:
            return f"held more than {cap / 1024**2:,.0f} MiB of memory in {len(pids)} processes"
        if _files_in_tmp(self._init_pid) > self._limits.files:
            return f"made more than {self._limits.files:,} files"
        return None


def accounting(pid: int) -> Accounting:
    """How the watch counts a process."""
    try:
        Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return Accounting.RESIDENT
    return Accounting.SHARED_ONCE


def counts_files(pid: int) -> bool:
    """Whether the watch may look into the /tmp of a sandbox, once there is one."""
    try:
        os.statvfs(f"/proc/{pid}/root")
    except PermissionError:
        return False
    return True


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
        return _read_resident(pid)
    except (OSError, IndexError):  # it has just ended
        return 0


def _read_resident(pid: int) -> int:
    """Of everybody's processes: statm asks for no right to trace them."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


def _share_bytes(pid: int) -> int:
    """Proportional: a page that n processes share counts 1/n for each. Slow for large processes.

    Without the right to trace the process, or once it has ended, what is resident: too much rather than too little.
    """
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
