"""Hyperparameters that are good one by one and not together, and the data that sampling options need. Pure."""

from collections.abc import Iterator

from app.jobs.plan import Plan
from app.jobs.split import Split
from core.errors import Problem
from core.spec import LossType

DYNAMIC, PROMPTS = "hyperparameters.dynamic_sampling", "hyperparameters.prompt_sampling"
TOP_P, EPSILON_HIGH = "hyperparameters.top_p", "hyperparameters.epsilon_high"


def combination_problems(plan: Plan) -> Iterator[Problem]:
    asked = plan.hyperparameters
    if asked.dynamic_sampling is not None and asked.beta > 0:
        message = "would leave silent groups out of the KL term that beta asks for, which is meant over every prompt"
        fix = f"Set {plan.path('hyperparameters.beta')} to 0, or leave dynamic_sampling out."
        yield Problem(plan.path(DYNAMIC), message, "kl_needs_every_group", fix)
    if asked.prompt_sampling is not None and asked.n_epochs is not None:
        message = "draws prompts by their weight: no epoch shows every row once"
        fix = f"Give max_steps instead of {plan.path('hyperparameters.n_epochs')}, or leave prompt_sampling out."
        yield Problem(plan.path(PROMPTS), message, "no_epochs", fix)
    yield from _objective_problems(plan)


def _objective_problems(plan: Plan) -> Iterator[Problem]:
    """What would train, and on another objective than the one that was asked for."""
    asked = plan.hyperparameters
    if asked.use_vllm and asked.top_p < 1:
        message = (
            "makes vLLM report probabilities of what top_p left, and the trainer's are of all tokens: the correction "
            "for vLLM's rounding would be biased at every token"
        )
        fix = f"Set {plan.path(TOP_P)} to 1, or leave use_vllm out."
        yield Problem(plan.path(TOP_P), message, "top_p_biases_correction", fix)
    if asked.loss_type is LossType.CISPO and asked.epsilon_high is not None and asked.epsilon_high < 1:
        message = (
            "is what cispo cuts the ratio itself off at, not its distance from 1: on-policy ratios are 1, so below 1 "
            "the whole loss would be scaled down"
        )
        fix = f"Leave {plan.path(EPSILON_HIGH)} out, which is 5 with cispo, or give at least 1 (4 to 8 are usual)."
        yield Problem(plan.path(EPSILON_HIGH), message, "cispo_cuts_every_ratio", fix)


def further_prompt_problems(plan: Plan, split: Split) -> Iterator[Problem]:
    """Fewer rows than a step takes are refused for every job."""
    asked = plan.hyperparameters
    if split.training_rows != asked.prompts_per_step:
        return
    wanted = {DYNAMIC: asked.dynamic_sampling, PROMPTS: asked.prompt_sampling}
    for setting in (setting for setting, value in wanted.items() if value is not None):
        message = f"has no prompt to choose: every step takes all {split.training_rows} training rows"
        fix = f"Upload more rows, or lower {plan.path('hyperparameters.prompts_per_step')}."
        yield Problem(plan.path(setting), message, "no_further_prompts", fix)
