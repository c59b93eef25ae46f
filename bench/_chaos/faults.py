"""Doing harm. Each kind finds its victim among what runs now, strikes, and knows what ends the harm, if anything does."""

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import redis

from bench._chaos import damage
from bench._chaos.clients import Clients
from bench._chaos.ledger import Ledger
from bench._chaos.parts import Part
from bench._chaos.plan import FaultKind, Strike
from bench._chaos.processes import Family, family_of
from bench._chaos.stack import LEASE_TTL_S, Stack
from bench._chaos.tcp_proxy import TcpProxy

MOST_FROZEN = 2
"""Workers that are frozen or cut off at one time: the others have to have a chance."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that has happened: one line of the report's evidence."""

    at: float
    kind: str
    target: str
    job_id: str | None = None
    supervisor_pid: int | None = None
    """Of the job, where the fault ends or freezes its supervisor."""
    until: float | None = None
    """When a fault that lasts is over."""


@dataclass(frozen=True, slots=True)
class Heal:
    at: float
    act: Callable[[], None]


class Faults:
    def __init__(self, stack: Stack, clients: Clients, ledger: Ledger, seed: int) -> None:
        self._stack = stack
        self._clients = clients
        self._ledger = ledger
        self._chance = random.Random(f"targets of {seed}")
        self._heals: list[Heal] = []
        self._away: dict[int, float] = {}
        """Workers that are frozen or cut off, until when."""
        self.damaged: set[str] = set()
        """Ids of checkpoints whose objects we changed."""
        self._by_kind: dict[FaultKind, Callable[[Strike], Done | None]] = {
            FaultKind.KILL_API: lambda _: self._kill(stack.api),
            FaultKind.KILL_DISPATCHER: lambda _: self._kill(self._chance.choice(stack.dispatchers)),
            FaultKind.KILL_VALKEY: lambda _: self._kill(stack.servers.valkey),
            FaultKind.KILL_POSTGRES: lambda _: self._kill(stack.servers.postgres),
            FaultKind.KILL_STORE: lambda _: self._kill(stack.servers.store),
            FaultKind.FLUSH_VALKEY: lambda _: self._flush(),
            FaultKind.KILL_CELERY_MAIN: lambda _: self._end("main", signal.SIGKILL),
            FaultKind.KILL_POOL_CHILD: lambda _: self._end("pool_child", signal.SIGKILL),
            FaultKind.KILL_SUPERVISOR: lambda _: self._end("supervisor", signal.SIGKILL),
            FaultKind.KILL_TRAINER: lambda _: self._end("trainer", signal.SIGKILL),
            FaultKind.KILL_GRADER: lambda _: self._end("grader", signal.SIGKILL),
            FaultKind.TERMINATE_WORKER: lambda _: self._end("main", signal.SIGTERM),
            FaultKind.TERMINATE_SUPERVISOR: lambda _: self._end("supervisor", signal.SIGTERM),
            FaultKind.KILL_WORKER_TREE: lambda _: self._kill_tree(),
            FaultKind.FREEZE_WORKER: lambda strike: self._freeze(strike, whole_tree=True),
            FaultKind.FREEZE_SUPERVISOR: lambda strike: self._freeze(strike, whole_tree=False),
            FaultKind.SILENCE_WORKER: self._silence_worker,
            FaultKind.SILENCE_POSTGRES: lambda strike: self._silence_all(strike, "postgres", longest_s=2.5),
            FaultKind.SILENCE_VALKEY: lambda strike: self._silence_all(strike, "valkey", longest_s=8.0),
            FaultKind.SILENCE_STORE: lambda strike: self._silence_all(strike, "store", longest_s=8.0),
            FaultKind.CUT_CONNECTIONS: lambda _: self._cut(),
            FaultKind.DAMAGE_CHECKPOINT: lambda _: self._damage_checkpoint(),
            FaultKind.CANCEL: lambda _: self._cancel(),
            FaultKind.PAUSE: self._pause,
        }

    def strike(self, strike: Strike) -> Done | None:
        """None when there is no victim at this moment: try again."""
        return self._by_kind[strike.kind](strike)

    def heal(self, *, at: float) -> None:
        """End what has lasted long enough."""
        due = [heal for heal in self._heals if heal.at <= at]
        self._heals = [heal for heal in self._heals if heal.at > at]
        for heal in due:
            heal.act()

    def thaw(self, pid: int, *, after_s: float) -> None:
        """A process that froze itself at a failpoint goes on later."""
        with suppress(psutil.NoSuchProcess):
            self._later(time.time() + after_s, _resumer([psutil.Process(pid)]))

    def _later(self, at: float, act: Callable[[], None]) -> None:
        self._heals.append(Heal(at, act))
