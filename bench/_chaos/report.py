"""The outcome of a run as one document, and as tables for people."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench._chaos.compute import Overlap
from bench._chaos.oracle import Violation, Wrong
from bench._chaos.timings import Figures, Timings
from bench._table import machine, today

SHOWN = 20
"""Violations that are printed; the document has all."""


@dataclass(frozen=True, slots=True)
class Report:
    seed: int
    fencing: bool
    store: str
    seconds: float
    jobs: int
    statuses: dict[str, int]
    attempts: int
    faults: int
    """Strikes and broken places together."""
    faults_by_kind: dict[str, int]
    checkpoints: int
    restores: int
    requests: int
    retries: int
    wrong: dict[str, int]
    """Of each kind that there is: 0 everywhere, or the run has failed."""
    violations: list[dict[str, str]]
    goals: list[dict[str, Any]]
    """Times: met or not, they do not decide."""
    folder: str

    @property
    def is_safe(self) -> bool:
        return not self.violations

    def as_json(self) -> str:
        return json.dumps({"bench": "chaos", "date": today(), "machine": machine()} | asdict(self), indent=1)

    def show(self) -> None:
        print(f"chaos, seed {self.seed} ({today()}, {machine()}; store: {self.store}; {self.seconds:.0f} s)\n")
        _table(
            ("what", "count"),
            [
                ("jobs", self.jobs),
                *((f"... {status}", count) for status, count in sorted(self.statuses.items())),
                ("attempts", self.attempts),
                ("faults", self.faults),
                ("checkpoints committed", self.checkpoints),
                ("checkpoints restored", self.restores),
                ("requests, and those sent again", f"{self.requests}, {self.retries}"),
                *self.wrong.items(),
            ],
        )
        _table(("fault", "count"), sorted(self.faults_by_kind.items()))
        _table(tuple(self.goals[0]), [tuple(goal.values()) for goal in self.goals])
        for violation in self.violations[:SHOWN]:
            print("! " + ": ".join(violation.values()))
        verdict = "satisfied" if self.is_safe else f"NOT satisfied: {len(self.violations)} violations"
        print(f"The oracle is {verdict} (seed {self.seed}{'' if self.fencing else ', fencing off'}; {self.folder}).")


def count_wrong(violations: Sequence[Violation]) -> dict[str, int]:
    counted = Counter(violation.wrong for violation in violations)
    return {wrong.value: counted[wrong] for wrong in Wrong}


def goals(timings: Timings, overlaps: Sequence[Overlap], *, lease_s: float, poll_s: float) -> list[dict[str, Any]]:
    together = sorted(overlap.seconds for overlap in overlaps)
    return [
        _goal("takeover of a dead worker's job, s", timings.takeovers, at_most=lease_s + 5.0),
        _goal("clean preemption, signal to release, s", timings.preemptions, at_most=5.0),
        _goal("work done again per recovery, checkpoint intervals", timings.redone, at_most=1.0),
        _goal("two trainers of one job at once, s", Figures(together, together), at_most=poll_s),
    ]


def _goal(name: str, figures: Figures, *, at_most: float) -> dict[str, Any]:
    p99 = _percentile(figures.quiet, 99)
    return {
        "goal": name,
        "n": len(figures.quiet),
        "p50": _percentile(figures.quiet, 50),
        "p99": p99,
        "at most": at_most,
        "met": p99 is None or p99 <= at_most,
        "n, also disturbed": len(figures.all),
        "max, also disturbed": _percentile(figures.all, 100),
    }


def _percentile(values: Sequence[float], percent: int) -> float | None:
    """Nearest rank, of sorted values."""
    if not values:
        return None
    return round(values[math.ceil(len(values) * percent / 100) - 1], 2)


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    for row in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join("-" if cell is None else str(cell) for cell in row) + " |")
    print()
