"""What a fault may lay hands on, and what remembers how its harm ends."""

import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from bench._chaos.clients import Clients
from bench._chaos.ledger import Ledger
from bench._chaos.processes import Family, families_of
from bench._chaos.stack import Stack
from core.storage.store import ObjectStore

MOST_AWAY = 2
"""Workers that are frozen or cut off at one time: the others must have a chance."""


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that has happened: one line of the report's evidence."""

    at: float
    kind: str
    target: str
    job_id: str | None = None
    """The job whose supervisor was hit."""
    until: float | None = None
    """When a fault that lasts is over."""


@dataclass
class Scene:
    stack: Stack
    store: ObjectStore
    """The straight way to it."""
    clients: Clients
    ledger: Ledger
    chance: random.Random
    damaged: set[str] = field(default_factory=set)
    """Ids of checkpoints whose objects were changed."""
    _heals: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _away: dict[int, float] = field(default_factory=dict)

    def families(self) -> list[Family]:
        """Of the workers that are neither frozen nor cut off, in random order."""
        workers = list(self.stack.workers)
        self.chance.shuffle(workers)
        return families_of(worker for worker in workers if self._away.get(worker.number, 0.0) < time.time())

    def may_take_away(self) -> bool:
        return sum(until > time.time() for until in self._away.values()) < MOST_AWAY

    def take_away(self, number: int, *, until: float) -> None:
        self._away[number] = until

    def later(self, at: float, act: Callable[[], None]) -> None:
        self._heals.append((at, act))

    def resume_later(self, processes: Iterable[psutil.Process], *, at: float) -> None:
        """SIGCONT for those that are still there."""
        self.later(at, lambda: _resume(list(processes)))

    def heal(self, *, now: float) -> None:
        """End the harm that has lasted long enough. Infinity: all of it."""
        due = [act for at, act in self._heals if at <= now]
        self._heals = [heal for heal in self._heals if heal[0] > now]
        for act in due:
            act()


def _resume(processes: list[psutil.Process]) -> None:
    for process in reversed(processes):  # parents first: a worker wakes before the work that it has lost
        with suppress(psutil.NoSuchProcess):
            process.resume()
