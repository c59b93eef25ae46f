"""Programs that always come back, and the wires between them, which can be cut."""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from bench._chaos.tcp_proxy import TcpProxy
from cli.processes import Child, Program

RESTART_S = (0.2, 1.0)
"""What ended is started again after a moment between these."""


class Part:
    """A program that is kept running, whatever ends it."""

    def __init__(self, child: Child, start: Callable[[], None]) -> None:
        self.child = child
        self._start = start
        self._due_at: float | None = None

    @classmethod
    def of(cls, program: Program) -> "Part":
        child = Child(program)
        return cls(child, child.start)

    @property
    def name(self) -> str:
        return self.child.program.name

    @property
    def is_up(self) -> bool:
        return self.child.exit_code() is None

    def start(self) -> None:
        self._due_at = None
        self._start()

    def kill(self) -> None:
        """SIGKILL to this one process; what depends on it has to find out."""
        if self.is_up:
            os.kill(self.child.pid, signal.SIGKILL)

    def tend(self) -> None:
        """Call often, from the main thread."""
        if self.is_up:
            return
        if self._due_at is None:
            self._due_at = time.monotonic() + random.uniform(*RESTART_S)
        elif time.monotonic() >= self._due_at:
            self.start()


class Network:
    """What one machine of the cluster sees of the servers."""

    def __init__(self, *, postgres: Path, valkey_port: int, store_port: int | None) -> None:
        self.postgres = TcpProxy(postgres)
        self.valkey = TcpProxy(valkey_port)
        self.store = TcpProxy(store_port) if store_port is not None else None

    @property
    def proxies(self) -> list[TcpProxy]:
        return [proxy for proxy in (self.postgres, self.valkey, self.store) if proxy is not None]
