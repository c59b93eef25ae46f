"""Recorded runs, healthy and sick: what the rules would have said of each after every step."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.learning.finding import Severity
from core.learning.findings import learning_findings
from core.learning.numbers import RunNumbers
from tests.recordings.cases import CASES, Case
from tests.recordings.recording import recorded

DOCS = Path(__file__).parents[2] / "docs" / "evidence.md"


@dataclass(frozen=True, slots=True)
class Judged:
    name: str
    case: Case
    steps: int
    first_seen: dict[str, int]
    """Warnings and errors by the step after which each was first found."""

    @property
    def false_alarms(self) -> set[str]:
        """What healed later counts too: it would have been an event."""
        return set(self.first_seen) - self.case.expected - self.case.also_right

    @property
    def misses(self) -> frozenset[str]:
        return self.case.expected - set(self.first_seen)


def judge(name: str) -> Judged:
    run = recorded(name)
    first_seen: dict[str, int] = {}
    for end in range(1, len(run.steps) + 1):
        step = run.steps[end - 1].step
        scores = [score for score in run.held_out if score.step < step or end == len(run.steps)]
        for code in grave(RunNumbers(run.steps[:end], scores, run.asked)):
            first_seen.setdefault(code, step)
    return Judged(name, CASES[name], len(run.steps), first_seen)


def grave(run: RunNumbers) -> list[str]:
    return [one.code for one in learning_findings(run) if one.severity is not Severity.INFO]


@pytest.fixture(scope="module")
def table() -> list[Judged]:
    return [judge(name) for name in CASES]


def test_false_alarms_and_misses(table: list[Judged]) -> None:
    """The table of docs/evidence.md: `pytest -s tests/recordings` prints it."""
    print(f"\n{'run':<16}{'steps':>5}  {'found at step':<60}false alarms / misses")
    for one in table:
        seen = ", ".join(f"{code} {step}" for code, step in sorted(one.first_seen.items(), key=lambda pair: pair[::-1]))
        wrong = ", ".join([*sorted(one.false_alarms), *(f"no {code}" for code in sorted(one.misses))])
        print(f"{one.name:<16}{one.steps:>5}  {seen or '-':<60}{wrong or '-'}")
    alarms, misses = sum(len(one.false_alarms) for one in table), sum(len(one.misses) for one in table)
    print(f"{len(table)} runs: {alarms} false alarms, {misses} misses")
    assert (alarms, misses) == (0, 0)


def test_the_documented_table_says_after_which_step_each_was_found(table: list[Judged]) -> None:
    assert documented() == {one.name: one.first_seen for one in table}


def documented() -> dict[str, dict[str, int]]:
    """Of docs/evidence.md: codes, one or several before the step in brackets, by run."""
    found: dict[str, dict[str, int]] = {}
    lines = DOCS.read_text().partition("| run | what was changed |")[2].partition("\n\n")[0].splitlines()[2:]
    for _, runs, _, cell, _ in (line.split("|") for line in lines):
        seen: dict[str, int] = {}
        codes: list[str] = []
        for code, step in re.findall(r"`(\w+)`|\((\d+)\)", cell):
            if step:
                seen |= dict.fromkeys(codes, int(step))
            codes = [] if step else [*codes, code]
        for name in re.findall(r"`([\w-]+)`", runs):
            found[f"healthy{name}" if name.startswith("-") else name] = seen
    return found
