"""The evaluations of a run: taken, kept as files, announced, and ranked."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

from core.results import Answer, Evaluation
from core.spec import EvaluationSpec
from worker.run_directory import EvaluationDone, Notice, RunDirectory
from worker.training.evaluate import Evaluator
from worker.training.phases import Phase, PhaseTimer
from worker.training.progress import Progress


@dataclass(frozen=True, slots=True)
class Scoreboard:
    run: RunDirectory
    evaluator: Evaluator
    wanted: EvaluationSpec
    phases: PhaseTimer
    progress: Progress

    def take(self, name: str, step: int) -> dict[str, float | None]:
        """Evaluate the policy as it stands after `step` steps; the metrics that a checkpoint of it carries."""
        with self.phases.phase(Phase.EVALUATION):
            evaluation = self.evaluator.evaluate(step)
        self.run.write_evaluation(name, evaluation)
        self.run.append(EvaluationDone(at=time.time(), name=name, step=step))
        self._warn_of_errors(name, evaluation)
        return self._enter(name, evaluation)

    def reuse(self, name: str) -> bool:
        """Enter an evaluation that an earlier attempt took; False when there is none."""
        evaluation = self.run.read_evaluation(name)
        if evaluation is None:
            return False
        self._enter(name, evaluation)
        return True

    def is_best(self, name: str) -> bool:
        return self.progress.best_evaluation == name

    def _enter(self, name: str, evaluation: Evaluation) -> dict[str, float | None]:
        answers = [answer for answer in self._ranked_answers(evaluation) if answer.reward is not None]
        mean = fmean(answer.reward for answer in answers if answer.reward is not None) if answers else None
        self.progress.scores[name] = mean
        return {
            "held_out/mean_reward": mean,
            "held_out/pass_rate": fmean(bool(answer.passed) for answer in answers) if answers else None,
        }

    def _ranked_answers(self, evaluation: Evaluation) -> Iterator[Answer]:
        """The answers that evaluations are ranked by: those of the verdict's decoding."""
        for task in evaluation.tasks:
            yield from (task.greedy,) if self.wanted.decoding == "greedy" else task.sampled

    def _warn_of_errors(self, name: str, evaluation: Evaluation) -> None:
        answers = [answer for task in evaluation.tasks for answer in (task.greedy, *task.sampled)]
        errors = sum(answer.reward is None for answer in answers)
        if errors:
            message = f"{errors} of {len(answers)} answers of the {name} evaluation could not be graded"
            data = {"evaluation": name, "errors": errors, "last_error": self.evaluator.last_error}
            notice = Notice(at=time.time(), level="warn", code="evaluation_errors", message=message, data=data)
            self.run.append(notice)
