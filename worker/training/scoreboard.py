"""The evaluations of a run: taken, kept as files, announced, and ranked."""

import time
from dataclasses import dataclass
from statistics import fmean

from core import verdict
from core.results import Evaluation
from core.spec import EvaluationSpec
from worker.run_directory import EvaluationDone, Notice, RunDirectory
from worker.training.evaluate import Evaluator
from worker.training.failures import GradingUnreliable
from worker.training.phases import Phase, PhaseTimer
from worker.training.progress import Progress

JUDGED = frozenset({"baseline", "final"})
"""The evaluations that the verdict is taken on."""


@dataclass(frozen=True, slots=True)
class Scoreboard:
    run: RunDirectory
    evaluator: Evaluator
    wanted: EvaluationSpec
    phases: PhaseTimer
    progress: Progress

    def take(self, name: str, step: int) -> dict[str, float | None]:
        """Evaluate the policy as it stands after `step` steps; the metrics that a checkpoint of it carries.

        Raises `GradingUnreliable` when too many answers of the baseline or the final evaluation met an error: it is
        not kept, and taken again when the run goes on. Another evaluation is kept then, and has no rank.
        """
        with self.phases.phase(Phase.EVALUATION):
            evaluation = self.evaluator.evaluate(step)
        if name in JUDGED and not self._is_reliable(evaluation):
            raise self._unreliable(name, evaluation)
        self.run.write_evaluation(name, evaluation)
        self.run.append(EvaluationDone(at=time.time(), name=name, step=step))
        self._warn_of_errors(name, evaluation)
        return self._enter(name, evaluation)

    def reuse(self, name: str) -> dict[str, float | None] | None:
        """Enter an evaluation that an earlier attempt took; None when there is none that `take` would have kept."""
        evaluation = self.run.read_evaluation(name)
        if evaluation is None or (name in JUDGED and not self._is_reliable(evaluation)):
            return None
        return self._enter(name, evaluation)

    def is_best(self, name: str) -> bool:
        return self.progress.best_evaluation == name

    def _is_reliable(self, evaluation: Evaluation) -> bool:
        return evaluation.is_reliable(self.wanted.decoding, self._max_error_share)

    @property
    def _max_error_share(self) -> float:
        return self.evaluator.spec.grading.max_error_share

    def _unreliable(self, name: str, evaluation: Evaluation) -> GradingUnreliable:
        answers = evaluation.answers(self.wanted.decoding)
        errors = [answer.error for answer in answers if answer.error is not None]
        return GradingUnreliable(
            f"{len(errors)} of {len(answers)} {self.wanted.decoding} answers of the {name} evaluation could not be"
            f" graded; at most {self._max_error_share:.0%} may fail. The last error: {errors[-1]}",
            fix="Resume the job when the cause is gone, or begin a new one with a corrected version of the reward.",
        )

    def _enter(self, name: str, evaluation: Evaluation) -> dict[str, float | None]:
        """Its score and pass rate; none where it cannot be relied on. Only what can be ranked may be the best."""
        decoding, is_reliable = self.wanted.decoding, self._is_reliable(evaluation)
        answers = evaluation.answers(decoding) if is_reliable else []
        rank = verdict.rank(evaluation, decoding=decoding, max_error_share=self._max_error_share)
        self.progress.scores[name] = rank
        mean = verdict.mean_reward(evaluation, decoding) if is_reliable else None
        passed = [answer.passed for answer in answers if answer.passed is not None]
        return {"held_out/mean_reward": mean, "held_out/pass_rate": fmean(passed) if passed else None}

    def _warn_of_errors(self, name: str, evaluation: Evaluation) -> None:
        answers = [answer for task in evaluation.tasks for answer in (task.greedy, *task.sampled)]
        errors = sum(answer.reward is None for answer in answers)
        if not errors:
            return
        is_ranked = self._is_reliable(evaluation)
        message = f"{errors} of {len(answers)} answers of the {name} evaluation could not be graded"
        if not is_ranked:
            message += ": too many for it to be compared with others, so it cannot be the best"
        data = {"evaluation": name, "errors": errors, "ranked": is_ranked, "last_error": self.evaluator.last_error}
        self.run.append(Notice(at=time.time(), level="warn", code="evaluation_errors", message=message, data=data))
