"""The numbers of a run that say how it learned: step metrics, held-out scores, and what was asked for."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist, fmean, variance

FEWEST_STEPS = 10
"""With fewer, an early and a late part of the run cannot be told apart from noise."""
PART = 0.2
"""Of the steps: how much of a run is its beginning, and how much its end."""
SHORTEST_PART = 5
LONGEST_PART = 20
"""However long a run is, what begins in it fills its end after so many steps."""
Z_95 = NormalDist().inv_cdf(0.975)
"""Standard errors on either side of a 95 % interval."""
HUGE = 1e100
"""What is larger, or not finite, is left out: squares of it would be too large for a float."""


@dataclass(frozen=True, slots=True)
class StepNumbers:
    step: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """One evaluation of the held-out tasks, under the verdict's decoding."""

    name: str
    step: int
    tasks: int
    """Those that could be graded; rows with the same prompt are one."""
    passed: int
    mean_reward: float | None
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Of each task, by the hash of its prompt; empty where only the sums are known."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Of the mean reward on the held-out tasks, between two evaluations."""

    mean: float
    error: float
    """Its standard error."""

    @property
    def is_certain(self) -> bool:
        return self.mean > Z_95 * self.error

    @property
    def at_most(self) -> float:
        return self.mean + Z_95 * self.error


@dataclass(frozen=True, slots=True)
class Asked:
    """What the spec asked for, as far as findings name it."""

    num_generations: int
    max_completion_length: int
    learning_rate: float
    reward_terms: tuple[str, ...]
    """Those with a weight above 0."""
    watched: tuple[str, ...] = ()
    """Names of the watched fields."""
    prompts_per_step: int = 8


@dataclass(frozen=True, slots=True)
class Series:
    """One metric over the steps that reported it; what is not a finite number was left out."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def _part(self) -> int:
        return min(len(self), max(SHORTEST_PART, min(LONGEST_PART, int(PART * len(self)))))

    @property
    def early(self) -> tuple[float, ...]:
        return self.values[: self._part]

    @property
    def late(self) -> tuple[float, ...]:
        return self.values[len(self) - self._part :]

    @property
    def late_from(self) -> int:
        """The step with which its end begins."""
        return self.steps[len(self) - self._part]

    def since(self, holds: Callable[[float], bool]) -> int:
        """The step from which on it always holds for the mean of a few steps; at the latest its end's begin."""
        answer = self.late_from
        for start in range(len(self) - SHORTEST_PART, -1, -1):
            if not holds(fmean(self.values[start : start + SHORTEST_PART])):
                break
            answer = min(answer, self.steps[start])
        return answer


@dataclass(frozen=True, slots=True)
class Change:
    """The end of a series against its beginning."""

    early: float
    late: float
    z: float
    """The difference in its standard errors, as of many steps; 0 where nothing varies and nothing changed."""

    @property
    def difference(self) -> float:
        return self.late - self.early

    @property
    def ratio(self) -> float:
        """Late over early; infinite from 0."""
        if self.early == 0:
            return math.inf if self.late > 0 else 1.0
        return self.late / self.early


@dataclass(frozen=True)
class RunNumbers:
    steps: Sequence[StepNumbers]
    """In order."""
    held_out: Sequence[HeldOutScore]
    """In order; the baseline is the first."""
    asked: Asked

    @cached_property
    def _read(self) -> dict[str, Series]:
        return {}

    def series(self, name: str) -> Series:
        if name not in self._read:
            self._read[name] = self._read_series(name)
        return self._read[name]

    def _read_series(self, name: str) -> Series:
        found = [(one.step, value) for one in self.steps if _is_number(value := one.metrics.get(name))]
        return Series(tuple(step for step, _ in found), tuple(float(value or 0.0) for _, value in found))

    def change(self, name: str) -> Change | None:
        """None where too few steps reported it."""
        series = self.series(name)
        if len(series) < FEWEST_STEPS:
            return None
        early, late = series.early, series.late
        difference = fmean(late) - fmean(early)
        return Change(fmean(early), fmean(late), _standard_errors(early, late, difference))

    @property
    def scored(self) -> list[HeldOutScore]:
        """The evaluations that could be graded."""
        return [one for one in self.held_out if one.mean_reward is not None and one.tasks]

    def up_to(self, step: int) -> "RunNumbers":
        """The run as it was then, with all that is known of the held-out tasks."""
        return RunNumbers([one for one in self.steps if one.step <= step], self.held_out, self.asked)

    def gain(self) -> Gain | None:
        """From the first evaluation that could be graded to the last; None where there are no two.

        Paired by tasks, as the verdict is. Where only the sums are known, as of two samples of rewards between 0 and 1:
        such an error is the larger one.
        """
        if len(self.scored) < 2:
            return None
        first, last = self.scored[0], self.scored[-1]
        changes = [last.rewards[task] - before for task, before in first.rewards.items() if task in last.rewards]
        if len(changes) > 1:
            return Gain(fmean(changes), math.sqrt(variance(changes) / len(changes)))
        before, after = first.mean_reward or 0.0, last.mean_reward or 0.0
        spread = [max(0.0, mean * (1 - mean)) / one.tasks for mean, one in ((before, first), (after, last))]
        return Gain(after - before, math.sqrt(sum(spread)))

    def mean(self, name: str) -> float | None:
        """Over the whole run; None where too few steps reported it."""
        series = self.series(name)
        return fmean(series.values) if len(series) >= FEWEST_STEPS else None

    def early(self, name: str) -> float | None:
        """Its mean over the beginning of the run."""
        series = self.series(name)
        return fmean(series.early) if len(series) >= FEWEST_STEPS else None

    def late(self, name: str) -> float | None:
        """Its mean over the end of the run."""
        series = self.series(name)
        return fmean(series.late) if len(series) >= FEWEST_STEPS else None


def correlation(one: Series, other: Series) -> float:
    """Pearson's r over the steps that both have; 0 where one of them does not vary, or too few are shared."""
    shared = dict(zip(other.steps, other.values, strict=True))
    pairs = [(value, shared[step]) for step, value in zip(one.steps, one.values, strict=True) if step in shared]
    if len(pairs) < FEWEST_STEPS:
        return 0.0
    xs, ys = [x for x, _ in pairs], [y for _, y in pairs]
    mean_x, mean_y = fmean(xs), fmean(ys)
    spread = math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))
    return sum((x - mean_x) * (y - mean_y) for x, y in pairs) / spread if spread else 0.0


def _standard_errors(early: Sequence[float], late: Sequence[float], difference: float) -> float:
    """Welch's t (1947), as the normal deviate that is as unlikely (Wallace 1959).

    With five steps on either side t passes 4 by chance in one of some hundred looks, and a run that is watched is
    looked at after every step.
    """
    parts = variance(early) / len(early), variance(late) / len(late)
    error = math.sqrt(sum(parts))
    if not error:
        return math.copysign(math.inf, difference) if difference else 0.0
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(early) - 1) + parts[1] ** 2 / (len(late) - 1))
    likely = math.sqrt(freedom * math.log1p((difference / error) ** 2 / freedom))
    return math.copysign(likely * (8 * freedom + 1) / (8 * freedom + 3), difference)


def _is_number(value: float | None) -> bool:
    return value is not None and abs(value) < HUGE
