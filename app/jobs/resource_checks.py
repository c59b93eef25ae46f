"""Whether what a job takes of a worker can be had, and whether its steps can be shared out. Pure."""

from collections.abc import Iterator

from app.jobs.plan import Plan
from core.errors import InvalidRequest, Problem
from core.spec import ResourcesSpec


class TooManyGpus(InvalidRequest):
    """More GPUs than any worker has: the job would wait for ever."""

    code = "too_many_gpus"


class UnevenProcesses(InvalidRequest):
    """Every process of a job has the same part of each step."""

    code = "uneven_processes"


class NeedsOneGpu(InvalidRequest):
    """What generates or draws in one process, and was not made for several."""

    code = "needs_one_gpu"


def resource_problems(resources: ResourcesSpec, plan: Plan, most_gpus: int) -> Iterator[Problem]:
    """`most_gpus`: of the largest worker (`PODIUM_GPUS`)."""
    if resources.gpus > most_gpus:
        message = f"no worker here has {resources.gpus} GPUs: the largest has {most_gpus}"
        fix = f"Ask for at most {most_gpus}, or let the operator raise PODIUM_GPUS where a worker has more."
        yield Problem("resources.gpus", message, TooManyGpus.code, fix)
    if resources.gpus > 1:
        yield from _for_one_gpu(plan)
    yield from _uneven(resources.gpus, plan)


def _for_one_gpu(plan: Plan) -> Iterator[Problem]:
    asked = plan.hyperparameters
    wanted = {
        "use_vllm": asked.use_vllm,
        "dynamic_sampling": asked.dynamic_sampling is not None,
        "prompt_sampling": asked.prompt_sampling is not None,
    }
    for name in (name for name, is_wanted in wanted.items() if is_wanted):
        fix = f"Ask for one GPU, or leave {name} out."
        yield Problem(plan.path(f"hyperparameters.{name}"), "works with one GPU only", NeedsOneGpu.code, fix)


def _uneven(processes: int, plan: Plan) -> Iterator[Problem]:
    asked = plan.hyperparameters
    if asked.prompts_per_step % processes:
        message = f"{asked.prompts_per_step} prompts cannot be shared out evenly among {processes} GPUs"
        fix = f"Use a multiple of {processes}."
        yield Problem(plan.path("hyperparameters.prompts_per_step"), message, UnevenProcesses.code, fix)
    elif asked.rollouts_per_pass is not None and (asked.rollouts_per_step // processes) % asked.rollouts_per_pass:
        share = asked.rollouts_per_step // processes
        message = f"must divide the {share} rollouts that each of {processes} GPUs has of a step"
        sizes = ", ".join(str(size) for size in range(1, share + 1) if share % size == 0)
        fix = f"Valid values: {sizes}."
        yield Problem(plan.path("hyperparameters.rollouts_per_pass"), message, UnevenProcesses.code, fix)
