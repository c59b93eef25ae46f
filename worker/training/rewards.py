"""All reward terms of a job: every rollout graded once by each, and a stop when grading does not work."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from core.errors import InvalidReward
from core.rows import Row
from core.spec import GradingSpec, RewardTerm
from worker.grading.client import Grade, GradeOutcome, GraderFailed, GraderNotStarted, Rollout, combine
from worker.grading.gates import Settlement
from worker.grading.terms import AnyGrader, grader_of
from worker.run_directory import RolloutGrade, RunDirectory
from worker.training.failures import GradersDown, GradingUnreliable, RewardUnusable, RunFailed

TERM_S = 240.0
"""What one term may take for one batch, restarts included: less than the least that the supervisor's watchdog gives a
phase, so that graders that are down pause the job, and never look like a trainer that hangs.
"""
MOST_TRACEBACK = 2000
"""Characters of it that a rollout's line keeps."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the policy to the prompt of `row`."""

    row: Row
    text: str
    token_ids: list[int]
    """With the token that ended it, without padding."""
    is_truncated: bool


@dataclass(frozen=True, slots=True)
class Scored:
    """What all rewards said of one completion."""

    grades: Mapping[str, Grade]
    reward: float | None
    """The weighted sum; None when a term failed, or none had an answer."""
    counted: Mapping[str, Grade] | None = None
    """What each term counts for, where gates decide (`worker.grading.gates`); unset: for what it said."""

    @property
    def error(self) -> str | None:
        """The first failed term that counts, and what it said."""
        return next((f"{name}: {_story(grade)}" for name, grade in self._counted.items() if grade.is_error), None)

    @property
    def is_infrastructure_error(self) -> bool:
        return any(grade.outcome is GradeOutcome.INFRASTRUCTURE_ERROR for grade in self._counted.values())

    @property
    def _counted(self) -> Mapping[str, Grade]:
        return self.grades if self.counted is None else self.counted

    def value(self, term: str) -> float | None:
        """One term's number for TRL. None for all terms of a completion without a reward: TRL would add up the rest."""
        return self._counted[term].value if self.reward is not None else None


class Rewards:
    def __init__(
        self,
        graders: Mapping[str, AnyGrader],
        terms: Sequence[RewardTerm],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each term has its grader, but for formulas. `clock` is CLOCK_MONOTONIC, as the graders'."""
        self._graders = graders
        self._clock = clock
        self.on_term: Callable[[], None] = lambda: None
        """Called before and after each term's grading: the phase has come a part further."""
        self._settlement = Settlement(terms)
        self._weights = {term.name: term.weight for term in terms}

    @property
    def names(self) -> list[str]:
        return list(self._weights)

    def score(self, completions: Sequence[Completion], *, step: int) -> list[Scored]:
        """One score per completion, in order; never raises for what reward code does.

        `step`: optimizer steps taken so far, what TRL shows rewards as `trainer_state.global_step`.
        """
        rollouts = [_rollout(completion) for completion in completions]
        columns = [self._grade(grader, rollouts, step) for grader in self._graders.values()]
        rows = (dict(zip(self._graders, grades, strict=True)) for grades in zip(*columns, strict=True))
        settled = (self._settlement.settle(said) for said in rows)
        return [Scored(one.grades, combine(one.counted, self._weights), one.counted) for one in settled]

    def take_output(self) -> dict[str, tuple[str, int]]:
        """What each term has written to standard output and error since the last call, where it has, and how many
        bytes before that are lost.
        """
        written = {name: grader.output.take() for name, grader in self._graders.items()}
        return {name: (text, lost_bytes) for name, (text, lost_bytes) in written.items() if text}

    def _grade(self, grader: AnyGrader, rollouts: Sequence[Rollout], step: int) -> list[Grade]:
        self.on_term()
        grades = grader.grade(rollouts, step=step, until=self._clock() + TERM_S)
        self.on_term()
        return grades


@contextmanager
def open_rewards(run: RunDirectory, terms: Sequence[RewardTerm]) -> Iterator[Rewards]:
    """Start what grades each term; raises `RewardUnusable` with the end of the traceback, `GradersDown` where the
    machine is at fault. What crashes or hangs while it loads is tried once more.
    """
    with ExitStack() as stack:
        graders: dict[str, AnyGrader] = {}
        for term in terms:
            grader = grader_of(term, run.reward_source(term.name))
            if grader is None:
                continue
            try:
                _enter(grader, stack)
            except (InvalidReward, GraderFailed) as error:
                kind = GradersDown if isinstance(error, GraderNotStarted) else RewardUnusable
                raise kind(f"The reward `{term.name}` cannot be loaded. {error.message}", fix=error.fix) from error
            graders[term.name] = grader
        yield Rewards(graders, terms)


def _enter(grader: AnyGrader, stack: ExitStack) -> None:
    try:
        stack.enter_context(grader)
    except GraderNotStarted:
        raise
    except GraderFailed:
        stack.enter_context(grader)


class RewardColumn:
    """One reward term in TRL's form. The grading has been done; this hands its numbers over."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.values: list[float | None] = []

    def __call__(self, **batch: Any) -> list[float | None]:
        return self.values


class GradingWatch:
    """The rule on errors (`core.spec.GradingSpec`): asked once a step, before the step is taken."""

    def __init__(self, rule: GradingSpec) -> None:
        self._rule = rule
        self._bad_steps = 0

    def check(self, scored: Sequence[Scored], *, step: int) -> None:
        """Raises `GradingUnreliable`."""
        failed = sum(score.error is not None for score in scored)
        is_empty = all(score.reward is None for score in scored)
        is_bad = is_empty or failed > self._rule.bad_step_error_share * len(scored)
        self._bad_steps = self._bad_steps + 1 if is_bad else 0
        if failed > self._rule.max_error_share * len(scored):
            limit = f"at most {self._rule.max_error_share:.0%} may fail"
            sentence = f"{failed} of {len(scored)} rollouts of step {step} could not be graded; {limit}."
            raise _failure(GradingUnreliable, sentence, scored)
        if self._bad_steps >= self._rule.max_bad_steps:
            sentence = f"Grading was bad for {self._bad_steps} steps running, up to step {step}."
            raise _failure(GradingUnreliable, sentence, scored)


def require_rewards(scored: Sequence[Scored], *, step: int) -> None:
    """Raises when not one answer of an evaluation after `step` steps has a reward: `RewardUnusable` at the baseline,
    where nothing can be lost, else `GradingUnreliable`.
    """
    if any(score.reward is not None for score in scored):
        return
    kind: type[RunFailed] = GradingUnreliable
    if step == 0:
        kind = GradersDown if all(score.is_infrastructure_error for score in scored) else RewardUnusable
    raise _failure(kind, "No held-out answer could be graded.", scored)


def reward_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    """The numbers that rewards reported beside their grades (TRL's `log_metric`), averaged over the rollouts."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for score in scored:
        for grade in score.grades.values():
            for name, value in grade.metrics.items():
                values[name].append(value)
    return {name: fmean(numbers) for name, numbers in values.items()}


def grader_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    """How the grading itself went: counts and times over all terms and rollouts."""
    grades = [grade for score in scored for grade in score.grades.values()]
    counts = Counter(grade.outcome for grade in grades)
    latencies = [grade.latency_s for grade in grades]
    return {
        "grader/user_errors": counts[GradeOutcome.USER_ERROR],
        "grader/infrastructure_errors": counts[GradeOutcome.INFRASTRUCTURE_ERROR],
        "grader/timeouts": sum(grade.timed_out for grade in grades),
        "grader/no_answer": counts[GradeOutcome.NO_ANSWER],
        "grader/error_share": sum(score.error is not None for score in scored) / len(scored),
        "grader/latency_mean_s": fmean(latencies),
        "grader/latency_max_s": max(latencies),
    }


def journal_grades(scored: Scored) -> dict[str, RolloutGrade]:
    return {
        name: RolloutGrade(
            outcome=grade.outcome.value,
            value=grade.value,
            error=(grade.message or grade.outcome.value) if grade.is_error else None,
            traceback=(grade.traceback or "")[-MOST_TRACEBACK:] or None if grade.is_error else None,
            timed_out=grade.timed_out,
            latency_s=round(grade.latency_s, 6),
        )
        for name, grade in scored.grades.items()
    }


def journal_extra(scored: Scored) -> dict[str, Any]:
    """The logged columns of all terms; of a name that two terms use, the second stands under `term/name`."""
    extra: dict[str, Any] = {}
    for term, grade in scored.grades.items():
        for name, value in grade.extra.items():
            extra[f"{term}/{name}" if name in extra else name] = value
    return extra


def _failure(kind: type[RunFailed], sentence: str, scored: Sequence[Scored]) -> RunFailed:
    errors = [score.error for score in scored if score.error is not None]
    if not errors:
        return kind(f"{sentence} Every reward answered None.")
    return kind(f"{sentence} The last error: {errors[-1]}")


def _rollout(completion: Completion) -> Rollout:
    row = completion.row
    return Rollout(row.prompt, completion.text, completion.token_ids, row.columns)


def _story(grade: Grade) -> str:
    return "\n".join(part for part in (grade.message, grade.traceback) if part)[-2000:] or grade.outcome.value
