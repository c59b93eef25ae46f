"""All reward terms of a job: every rollout graded once by each, and a stop when grading does not work."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from core.errors import InvalidReward
from core.rows import Row
from core.spec import PinnedReward
from worker.grading.client import Grade, GradeOutcome, Grader, Rollout, combine
from worker.grading.client import GraderFailed as GraderBroken
from worker.run_directory import RolloutGrade, RunDirectory
from worker.training.failures import GraderFailed, GradersDown

WORST_ERROR_SHARE = 0.5
BAD_STEPS_TO_FAIL = 5


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

    @property
    def error(self) -> str | None:
        """The first failed term and what it said."""
        return next((f"{name}: {_story(grade)}" for name, grade in self.grades.items() if grade.is_error), None)

    @property
    def is_infrastructure_error(self) -> bool:
        return any(grade.outcome is GradeOutcome.INFRASTRUCTURE_ERROR for grade in self.grades.values())

    def value(self, term: str) -> float | None:
        """One term's number for TRL. None for all terms of a completion without a reward: TRL would add up the rest."""
        return self.grades[term].value if self.reward is not None else None


class Rewards:
    def __init__(self, graders: Mapping[str, Grader], weights: Mapping[str, float]) -> None:
        self._graders = graders
        self._weights = weights

    @property
    def names(self) -> list[str]:
        return list(self._graders)

    def score(self, completions: Sequence[Completion], *, step: int) -> list[Scored]:
        """One score per completion, in order; never raises for what reward code does.

        `step`: optimizer steps taken so far, what TRL shows rewards as `trainer_state.global_step`.
        """
        rollouts = [_rollout(completion) for completion in completions]
        columns = [grader.grade(rollouts, step=step) for grader in self._graders.values()]
        rows = [dict(zip(self._graders, grades, strict=True)) for grades in zip(*columns, strict=True)]
        return [Scored(grades, combine(grades, self._weights)) for grades in rows]


@contextmanager
def open_rewards(run: RunDirectory, terms: Sequence[PinnedReward]) -> Iterator[Rewards]:
    """Start a grading process for each term; raises `GraderFailed` with the end of the traceback."""
    with ExitStack() as stack:
        graders = {}
        for term in terms:
            try:
                grader = Grader(run.reward_source(term.name), entry_point=term.entry_point)
                graders[term.name] = stack.enter_context(grader)
            except (InvalidReward, GraderBroken) as error:
                raise GraderFailed(
                    f"The reward `{term.name}` cannot be loaded. {error.message}", fix=error.fix
                ) from error
        yield Rewards(graders, {term.name: term.weight for term in terms})


class RewardColumn:
    """One reward term in TRL's form. The grading has been done; this hands its numbers over."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.values: list[float | None] = []

    def __call__(self, **batch: Any) -> list[float | None]:
        return self.values


class GradingWatch:
    """Ends the run when a step has no reward at all, or when most grading fails for several steps running."""

    def __init__(self) -> None:
        self._bad_steps = 0

    def check(self, scored: Sequence[Scored], *, step: int) -> None:
        """Raises `GraderFailed`."""
        failed = sum(score.error is not None for score in scored)
        self._bad_steps = self._bad_steps + 1 if failed > WORST_ERROR_SHARE * len(scored) else 0
        require_rewards(scored, what=f"rollout of step {step}")
        if self._bad_steps >= BAD_STEPS_TO_FAIL:
            sentence = f"Most rollouts could not be graded for {self._bad_steps} steps running, up to step {step}."
            raise _failure(sentence, scored)


def require_rewards(scored: Sequence[Scored], *, what: str) -> None:
    """Raises `GraderFailed` when not one has a reward."""
    if all(score.reward is None for score in scored):
        raise _failure(f"No {what} could be graded.", scored)


def reward_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    """The numbers that rewards reported beside their grades (TRL's `log_metric`), averaged over the rollouts."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for score in scored:
        for grade in score.grades.values():
            for name, value in grade.metrics.items():
                values[name].append(value)
    return {name: fmean(numbers) for name, numbers in values.items()}


def journal_grades(scored: Scored) -> dict[str, RolloutGrade]:
    return {
        name: RolloutGrade(
            outcome=grade.outcome.value, value=grade.value, error=_story(grade) if grade.is_error else None
        )
        for name, grade in scored.grades.items()
    }


def _failure(sentence: str, scored: Sequence[Scored]) -> GraderFailed:
    errors = [score.error for score in scored if score.error is not None]
    if not errors:
        return GraderFailed(f"{sentence} Every reward answered None.")
    kind = GradersDown if all(score.is_infrastructure_error for score in scored) else GraderFailed
    return kind(f"{sentence} The last error: {errors[-1]}")


def _rollout(completion: Completion) -> Rollout:
    row = completion.row
    return Rollout(row.prompt, completion.text, completion.token_ids, row.columns)


def _story(grade: Grade) -> str:
    return "\n".join(part for part in (grade.message, grade.traceback) if part)[-2000:] or grade.outcome.value
