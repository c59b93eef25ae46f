"""Showing a reward the probe's texts within a time, and keeping what it answered."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.reward_report import ProbeCase
from core.rows import Row
from worker.grading.grades import Grade, GradeOutcome, Rollout
from worker.grading.probe_flags import Change
from worker.grading.probe_inputs import WRONG, Input, token_ids
from worker.grading.process import OutputTail

_CALL_S = 0.5
"""What one call should take: between calls there is a look at the clock."""
_MOST_AT_ONCE = 256
_SPARE = 0.8
"""Of the time that is left, how much is planned with."""
_MOST_BROKEN = 4
"""Who has only crashed or hung so often is not asked again."""


class Prober(Protocol):
    """`worker.grading.terms.AnyGrader`, entered."""

    output: OutputTail

    def grade(self, rollouts: Sequence[Rollout], *, step: int = 0) -> list[Grade]: ...


@dataclass(frozen=True, slots=True)
class Trial:
    shown: Input
    row: int
    """Index of the row."""


@dataclass(frozen=True, slots=True)
class _Call:
    trials: Sequence[Trial]
    grades: Sequence[Grade]
    seconds: float

    @property
    def is_sound(self) -> bool:
        return all(grade.outcome is not GradeOutcome.INFRASTRUCTURE_ERROR for grade in self.grades)


class Runs:
    """One probing of one grader."""

    def __init__(self, grader: Prober, rows: Sequence[Row], *, end: float) -> None:
        """No call begins after `end`, of the monotonic clock."""
        self.rows = rows
        self.rows_used = 0
        self.changes: list[Change] = []
        self.compared = 0
        self._grader = grader
        self._end = end
        self._calls: list[_Call] = []
        self._not_tried: list[ProbeCase] = []

    @property
    def not_tried(self) -> list[ProbeCase]:
        return list(dict.fromkeys(self._not_tried))

    @property
    def latencies_s(self) -> list[float]:
        return [grade.latency_s for call in self._calls for grade in call.grades]

    def of(self, shown: Input) -> list[Grade]:
        """What it was answered, by row."""
        pairs = (pair for call in self._calls for pair in zip(call.trials, call.grades, strict=True))
        return [grade for trial, grade in pairs if trial.shown is shown]

    def warm_up(self) -> None:
        """The first call loads what the reward imports late; it says nothing about the others."""
        if not self._is_over():
            self._grader.grade([self._rollout(WRONG, 0)])

    def show(self, inputs: Sequence[Input]) -> None:
        """Each on one row, then those that were answered on as many of the others as there is time for."""
        alone = list(self._alone(inputs))
        sound = [call for call in alone if call.is_sound]
        cost_s = sum(call.seconds for call in sound)
        rows = min(self._affordable(cost_s) if sound else len(alone[:1]), self.rows_used or len(self.rows))
        self.rows_used = self.rows_used or rows
        trials = [call.trials[0] for call in sound]
        rest = [
            Trial(trial.shown, row)
            for row in range(rows)
            for trial in trials
            if row != trial.row and _text(trial.shown, row) is not None
        ]
        at_once = max(1, min(_MOST_AT_ONCE, int(_CALL_S * len(sound) / max(cost_s, 1e-9))))
        for start in range(0, len(rest), at_once):
            if not self._is_over():
                self._ask(rest[start : start + at_once])

    def repeat(self) -> None:
        """All calls again, those apart that something broke in, and compare."""
        for call in [call for call in self._calls if call.is_sound]:
            if time.monotonic() + call.seconds > self._end:
                continue
            again = self._grader.grade([self._rollout_of(trial) for trial in call.trials])
            for trial, first, second in zip(call.trials, call.grades, again, strict=True):
                self._compare(trial, first, second)

    def _compare(self, trial: Trial, first: Grade, second: Grade) -> None:
        if second.outcome is GradeOutcome.INFRASTRUCTURE_ERROR:
            return
        self.compared += 1
        if not _is_same(first.value, second.value):
            line = self.rows[trial.row].line or trial.row + 1
            self.changes.append(Change(trial.shown.case, line, first.value, second.value))

    def _alone(self, inputs: Sequence[Input]) -> Iterator[_Call]:
        for shown in inputs:
            row = next((row for row in range(len(self.rows)) if _text(shown, row) is not None), None)
            if row is None:
                continue
            if self._is_over() or self._is_hopeless():
                self._not_tried.append(shown.case)
            else:
                yield self._ask([Trial(shown, row)])

    def _affordable(self, cost_s: float) -> int:
        """How many rows: of each, everything is asked twice."""
        left_s = _SPARE * (self._end - time.monotonic()) - cost_s
        more = int(left_s / (2 * max(cost_s, 1e-9)))
        return 1 + max(0, min(more, len(self.rows) - 1))

    def _ask(self, trials: Sequence[Trial]) -> _Call:
        started = time.monotonic()
        grades = self._grader.grade([self._rollout_of(trial) for trial in trials])
        call = _Call(trials, grades, time.monotonic() - started)
        self._calls.append(call)
        return call

    def _is_over(self) -> bool:
        return time.monotonic() >= self._end

    def _is_hopeless(self) -> bool:
        return len(self._calls) >= _MOST_BROKEN and not any(call.is_sound for call in self._calls)

    def _rollout_of(self, trial: Trial) -> Rollout:
        text = _text(trial.shown, trial.row)
        assert text is not None, "a trial has a text"
        return self._rollout(text, trial.row)

    def _rollout(self, text: str, row: int) -> Rollout:
        return Rollout(self.rows[row].prompt, text, token_ids(text), self.rows[row].columns)


def _text(shown: Input, row: int) -> str | None:
    return shown.texts[row] if row < len(shown.texts) else None


def _is_same(first: float | None, second: float | None) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-9)
