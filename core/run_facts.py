"""What rules look at, taken from a job's spec and its evaluations."""

from collections import defaultdict
from statistics import fmean

from core.learning.numbers import Asked, HeldOutScore
from core.repeated_prompts import by_prompt, most
from core.results import Evaluation
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
    """By the verdict's decoding, rows with one prompt as one task, as the verdict counts them; of several samples all
    count for the reward, the first for passing.
    """
    decoding = spec.evaluation.decoding
    firsts = [(task.prompt_sha256, answer.passed) for task in evaluation.tasks for answer in task.answers(decoding)[:1]]
    tasks = by_prompt((prompt, passed) for prompt, passed in firsts if passed is not None)
    rewards: dict[str, list[float]] = defaultdict(list)
    for task in evaluation.tasks:
        rewards[task.prompt_sha256] += [one.reward for one in task.answers(decoding) if one.reward is not None]
    by_task = {prompt: fmean(rows) for prompt, rows in rewards.items() if rows}
    return HeldOutScore(
        name=name,
        step=evaluation.step,
        tasks=len(tasks),
        passed=sum(map(most, tasks)),
        mean_reward=fmean(by_task.values()) if by_task else None,
        rewards=by_task,
    )
