"""How much of the machine a sandbox may use. The kernel's limits are per process, but for the number of processes;
the memory of all of them together is watched from outside (`worker.grading.memory`).
"""

import os
import resource
from dataclasses import dataclass

DEFAULT_MEMORY_BYTES = 2 * 1024**3
_COUNTS_PER_NAMESPACE = (5, 14)
"""Before this Linux, RLIMIT_NPROC counts every process of the user, on the whole host."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    """Of one process in address space, and of all together in what they really hold."""
    processes: int = 64
    """Threads too, with the two that every sandbox starts with."""
    files_bytes: int = 16 * 1024**2
    """Of /tmp as a whole."""
    files: int = 10_000
    """In /tmp: every file, folder and link costs the kernel memory beside its bytes."""
    open_files: int = 64
    cpu_s: int = 3600
    """Of one process in its whole life. Deadlines end a slow grading much sooner; this ends threads that were left
    spinning: the sandbox is killed and started again."""

    def apply(self) -> None:
        """To this process, and to all that it starts; nobody inside can raise them again."""
        _set(resource.RLIMIT_AS, self.memory_bytes)
        _set(resource.RLIMIT_CPU, self.cpu_s)
        _set(resource.RLIMIT_FSIZE, self.files_bytes)
        _set(resource.RLIMIT_NOFILE, self.open_files)
        _set(resource.RLIMIT_STACK, 8 * 1024**2)
        _set(resource.RLIMIT_SIGPENDING, 128)
        for unused in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_RTPRIO):
            _set(unused, 0)
        if counts_processes():
            _set(resource.RLIMIT_NPROC, self.processes)


def counts_processes() -> bool:
    """Whether this kernel counts the processes of each sandbox apart."""
    major, minor = os.uname().release.replace("-", ".").split(".")[:2]
    return (int(major), int(minor)) >= _COUNTS_PER_NAMESPACE


def _set(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))
