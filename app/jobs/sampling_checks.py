"""What dynamic sampling and prompt sampling cannot be combined with, and the data that they need. Pure."""

from collections.abc import Iterator

from app.jobs.plan import Plan
from app.jobs.split import Split
from core.errors import Problem

DYNAMIC, PROMPTS = "hyperparameters.dynamic_sampling", "hyperparameters.prompt_sampling"


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


def row_problems(plan: Plan, split: Split) -> Iterator[Problem]:
    """Fewer rows than a step takes are refused for every job."""
    asked = plan.hyperparameters
    if split.training_rows != asked.prompts_per_step:
        return
    wanted = {DYNAMIC: asked.dynamic_sampling, PROMPTS: asked.prompt_sampling}
    for setting in (setting for setting, value in wanted.items() if value is not None):
        message = f"has no prompt to choose: every step takes all {split.training_rows} training rows"
        fix = f"Upload more rows, or lower {plan.path('hyperparameters.prompts_per_step')}."
        yield Problem(plan.path(setting), message, "no_further_prompts", fix)
