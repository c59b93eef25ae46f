"""What rules look at, taken from a job's spec and its evaluations."""

from collections.abc import Sequence

from core.learning.numbers import Asked, HeldOutScore
from core.results import Answer, Evaluation
from core.spec import JobSpec


def asked_of(spec: JobSpec) -> Asked:
    return Asked(
        num_generations=spec.hyperparameters.num_generations,
        prompts_per_step=spec.hyperparameters.prompts_per_step,
        max_completion_length=spec.hyperparameters.max_completion_length,
        learning_rate=spec.learning_rate,
        reward_terms=tuple(term.name for term in spec.rewards if term.weight > 0),
        watched=tuple(field.label for field in spec.watch),
    )


def held_out_score(name: str, evaluation: Evaluation, spec: JobSpec) -> HeldOutScore:
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
