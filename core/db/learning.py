"""A run's numbers as the ledger has them, for `core.learning`."""

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import progress
from core.db.models import StepMetrics
from core.ids import JobId
from core.learning.numbers import Asked, HeldOutScore, RunNumbers, StepNumbers
from core.results import Answer, Evaluation
from core.spec import JobSpec

MOST_STEPS = 10_000
"""A longer run is judged by its newest: what is wrong now began in them, or is still true."""


def run_numbers(session: Session, job_id: JobId, spec: JobSpec) -> RunNumbers:
    newest = (
        select(StepMetrics.step, StepMetrics.metrics)
        .where(StepMetrics.job_id == job_id)
        .order_by(StepMetrics.step.desc())
        .limit(MOST_STEPS)
    )
    steps = [StepNumbers(step, metrics) for step, metrics in session.execute(newest)]
    evaluations = progress.evaluations_by_name(session, job_id)
    held_out = [_score(name, evaluation, spec) for name, evaluation in evaluations.items()]
    return RunNumbers(steps[::-1], held_out, _asked(spec))


def _asked(spec: JobSpec) -> Asked:
    return Asked(
        num_generations=spec.hyperparameters.num_generations,
        max_completion_length=spec.hyperparameters.max_completion_length,
        learning_rate=spec.learning_rate,
        reward_terms=tuple(term.name for term in spec.rewards if term.weight > 0),
        watched=tuple(field.label for field in spec.watch),
    )


def _score(name: str, evaluation: Evaluation, spec: JobSpec) -> HeldOutScore:
    """By the verdict's decoding; of several samples per task all count for the reward, the first for passing."""
    answers: Sequence[Sequence[Answer]] = [
        (task.greedy,) if spec.evaluation.decoding == "greedy" else task.sampled for task in evaluation.tasks
    ]
    firsts = [task[0] for task in answers if task and task[0].passed is not None]
    rewards = [answer.reward for task in answers for answer in task if answer.reward is not None]
    return HeldOutScore(
        name=name,
        step=evaluation.step,
        tasks=len(firsts),
        passed=sum(answer.passed is True for answer in firsts),
        mean_reward=sum(rewards) / len(rewards) if rewards else None,
    )
