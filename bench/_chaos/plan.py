"""What a run will do, decided by its seed alone: which jobs, which faults, in which order, with which gaps."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    KILL_API = "kill_api"
    KILL_DISPATCHER = "kill_dispatcher"
    KILL_CELERY_MAIN = "kill_celery_main"
    KILL_POOL_CHILD = "kill_pool_child"
    KILL_SUPERVISOR = "kill_supervisor"
    KILL_TRAINER = "kill_trainer"
    KILL_GRADER = "kill_grader"
    KILL_WORKER_TREE = "kill_worker_tree"
    """Celery, supervisor, trainer and grader at once, as when the machine goes."""
    KILL_VALKEY = "kill_valkey"
    KILL_POSTGRES = "kill_postgres"
    KILL_STORE = "kill_store"
    FLUSH_VALKEY = "flush_valkey"
    FREEZE_WORKER = "freeze_worker"
    """The whole tree stops (SIGSTOP) until after its lease, then goes on."""
    FREEZE_SUPERVISOR = "freeze_supervisor"
    """Its trainer computes on, while the lease runs out."""
    TERMINATE_WORKER = "terminate_worker"
    TERMINATE_SUPERVISOR = "terminate_supervisor"
    SILENCE_WORKER = "silence_worker"
    """One worker reaches nothing, and is not told so, for longer than its lease."""
    SILENCE_POSTGRES = "silence_postgres"
    """Nobody reaches it, for less than a lease."""
    SILENCE_VALKEY = "silence_valkey"
    SILENCE_STORE = "silence_store"
    CUT_CONNECTIONS = "cut_connections"
    DAMAGE_CHECKPOINT = "damage_checkpoint"
    """The newest checkpoint of a running job loses or changes a byte, a file or its manifest; then its trainer dies."""
    CANCEL = "cancel"
    PAUSE = "pause"
    """And a resume, a little later."""


WEIGHT = {
    FaultKind.KILL_SUPERVISOR: 3,
    FaultKind.FREEZE_SUPERVISOR: 2,
    FaultKind.FREEZE_WORKER: 2,
    FaultKind.KILL_WORKER_TREE: 2,
    FaultKind.KILL_TRAINER: 2,
    FaultKind.TERMINATE_WORKER: 2,
    FaultKind.TERMINATE_SUPERVISOR: 2,
    FaultKind.DAMAGE_CHECKPOINT: 2,
}
"""How often one kind comes compared with the others, which have 1."""


@dataclass(frozen=True, slots=True)
class Submit:
    number: int
    steps: int
    save_every: int
    keep: int
    """Checkpoints that retention leaves."""
    twice: bool
    """The client sends the same request again after its answer, as one that did not hear it would."""


@dataclass(frozen=True, slots=True)
class Strike:
    number: int
    kind: FaultKind
    gap_s: float
    """Since the fault before."""
    lasts: float
    """How long it goes on, where it ends by itself: a share of what the kind allows."""


Action = Submit | Strike


def make_plan(seed: int, *, jobs: int, faults: int, kinds: Sequence[FaultKind], mean_gap_s: float) -> list[Action]:
    """Jobs and faults spread over each other; a job comes first, and one comes last."""
    chance = random.Random(seed)
    strikes = [_strike(chance, number, kind, mean_gap_s) for number, kind in enumerate(_draw(chance, kinds, faults))]
    first, *middle, last = (_submit(chance, number) for number in range(jobs))
    between: list[Action] = [*middle, *strikes]
    order = _evenly(chance, len(middle)) + _evenly(chance, len(strikes))
    mixed = [action for _, action in sorted(zip(order, between, strict=True), key=lambda pair: pair[0])]
    return [first, *mixed, last]


def _draw(chance: random.Random, kinds: Sequence[FaultKind], count: int) -> list[FaultKind]:
    """Every kind once, if there is room, then by weight."""
    once = list(kinds)
    chance.shuffle(once)
    more = chance.choices(kinds, [WEIGHT.get(kind, 1) for kind in kinds], k=max(0, count - len(once)))
    drawn = [*once[:count], *more]
    chance.shuffle(drawn)
    return drawn


def _submit(chance: random.Random, number: int) -> Submit:
    return Submit(
        number=number,
        steps=chance.randint(6, 14),
        save_every=chance.randint(2, 4),
        keep=chance.randint(1, 3),
        twice=chance.random() < 0.25,
    )


def _strike(chance: random.Random, number: int, kind: FaultKind, mean_gap_s: float) -> Strike:
    gap_s = min(chance.expovariate(1 / mean_gap_s), 3 * mean_gap_s)
    return Strike(number=number, kind=kind, gap_s=gap_s, lasts=chance.random())


def _evenly(chance: random.Random, count: int) -> list[float]:
    """Where each of `count` stands between 0 and 1."""
    return [(number + chance.random()) / count for number in range(count)]
