"""Everything that can be wrong with a job beyond the shape of its body, found at once. Pure over `Facts`."""

import difflib
from collections.abc import Iterator, Sequence

from app.jobs import branch
from app.jobs.facts import Facts
from app.jobs.integrations import IntegrationNotOffered
from app.jobs.methods import GrpoMethod
from app.jobs.plan import Plan
from app.jobs.resource_checks import NeedsOneGpu, TooManyGpus, UnevenProcesses, resource_problems
from app.jobs.reward_checks import reward_problems
from app.jobs.sampling_checks import combination_problems, further_prompt_problems
from app.jobs.schemas import JobCreate
from app.jobs.split import Split, total_steps
from core.db.models import File
from core.errors import InvalidRequest, ModelNotAllowed, ModelNotFound, Problem
from core.split import FEWEST_TASKS

MAX_STEPS = 1_000_000


class DataFileNotFound(InvalidRequest):
    code = "file_not_found"
    status = 404


class RewardNotFound(InvalidRequest):
    code = "reward_not_found"
    status = 404


class BranchPointNotFound(InvalidRequest):
    """`model` names a checkpoint, or a trained model, that is not there, or belongs to somebody else."""

    code = branch.NOT_FOUND
    status = 404


class CheckpointGone(InvalidRequest):
    """`model` names a checkpoint that was given up by retention, or that is damaged."""

    code = branch.GONE
    status = 409


class AdapterDiffers(InvalidRequest):
    """An adapter setting that the weights of the checkpoint do not have."""

    code = "adapter_differs"


class MissingColumn(InvalidRequest):
    """A column that a reward reads and the rows lack."""

    code = "missing_column"


class RewardDoesNotLoad(InvalidRequest):
    """The probe of the reward found that its source cannot be loaded: no step could be graded."""

    code = "reward_does_not_load"


class MixedPrompts(InvalidRequest):
    """One file has texts and the other chats: what is judged would not be what was trained."""

    code = "mixed_prompts"


class TooFewHeldOutTasks(InvalidRequest):
    code = "too_few_held_out_tasks"


class TooFewRows(InvalidRequest):
    code = "too_few_rows"


_KINDS: dict[str, type[InvalidRequest]] = {
    kind.code: kind
    for kind in (
        DataFileNotFound,
        RewardNotFound,
        BranchPointNotFound,
        CheckpointGone,
        AdapterDiffers,
        MissingColumn,
        RewardDoesNotLoad,
        MixedPrompts,
        TooFewHeldOutTasks,
        TooFewRows,
        IntegrationNotOffered,
        NeedsOneGpu,
        TooManyGpus,
        UnevenProcesses,
        ModelNotFound,
        ModelNotAllowed,
    )
}
"""The error of a job whose problems are all of one kind; different ones together are an `InvalidRequest`."""


def refusal(problems: Sequence[Problem], *, subject: str = "The job") -> InvalidRequest:
    codes = {problem.code for problem in problems}
    kind = _KINDS.get(problems[0].code, InvalidRequest) if len(codes) == 1 else InvalidRequest
    return kind.of(list(problems), subject=subject)


def problems_with(body: JobCreate, plan: Plan, facts: Facts, *, most_gpus: int) -> list[Problem]:
    """What is wrong with the job, its model apart; in the order of the body's fields.

    `most_gpus`: of the largest worker.
    """
    problems = [*facts.problems, *_same_file(body), *reward_problems(plan, facts), *_watched_columns(plan, facts)]
    problems += [*resource_problems(body.resources, plan, most_gpus), *combination_problems(plan)]
    if facts.start is not None and isinstance(body.method.chosen, GrpoMethod):
        field = plan.path("adapter")
        problems += branch.differences(body.method.chosen.adapter, facts.start.adapter, field=field)
    if facts.training is None or (body.validation_file is not None and facts.held_out is None):
        return problems
    problems += _mixed_prompts(facts.training, facts.held_out)
    split = Split.of_files(facts.training, facts.held_out, plan.evaluation.held_out_fraction)
    if split.held_out_tasks < FEWEST_TASKS:
        problems.append(_too_few_tasks(body, plan, split))
    return [*problems, *_row_problems(plan, split), *further_prompt_problems(plan, split)]


def _same_file(body: JobCreate) -> Iterator[Problem]:
    if body.validation_file == body.training_file:
        message = "is the training file: its tasks would not be held out"
        fix = "Upload the held-out tasks as a file of their own, or leave validation_file out."
        yield Problem("validation_file", message, "same_file", fix)


def _mixed_prompts(training: File, held_out: File | None) -> Iterator[Problem]:
    if held_out is not None and len({training.prompt_kind, held_out.prompt_kind} - {None}) > 1:
        message = f"has prompts that are {held_out.prompt_kind}, and those of training_file are {training.prompt_kind}"
        fix = "Use one kind in both: text is sampled as it stands, messages through the model's chat template."
        yield Problem("validation_file", message, MixedPrompts.code, fix)


def _watched_columns(plan: Plan, facts: Facts) -> Iterator[Problem]:
    if facts.training is None:
        return
    for number, field in enumerate(plan.watch):
        if field.column is None or field.column in facts.training.columns:
            continue
        near = difflib.get_close_matches(field.column, facts.training.columns, n=1)
        fix = f"Did you mean `{near[0]}`?" if near else "Name a column that every row has."
        message = f"the rows of training_file have no column `{field.column}`"
        yield Problem(f"{plan.field}.watch[{number}].column", message, MissingColumn.code, fix)


def _too_few_tasks(body: JobCreate, plan: Plan, split: Split) -> Problem:
    code = TooFewHeldOutTasks.code
    if body.validation_file is not None:
        message = f"has {_count(split.held_out_tasks, 'different prompt')}, but a verdict needs at least {FEWEST_TASKS}"
        return Problem("validation_file", message, code, "Upload more held-out tasks; 100 or more show small changes.")
    rows = split.training_rows + split.held_out_rows
    fraction = plan.evaluation.held_out_fraction
    message = (
        f"has {_count(rows, 'row')}: holding out {fraction:g} of its prompts leaves "
        f"{_count(split.held_out_tasks, 'task')}, but a verdict needs at least {FEWEST_TASKS}"
    )
    return Problem("training_file", message, code, "Upload more rows, or give a validation_file with held-out tasks.")


def _row_problems(plan: Plan, split: Split) -> Iterator[Problem]:
    asked = plan.hyperparameters
    if split.training_rows < asked.prompts_per_step:
        message = f"leaves {_count(split.training_rows, 'row')} to train on, fewer than one step's prompts"
        setting = plan.path("hyperparameters.prompts_per_step")
        fix = f"Upload more rows, or set {setting} to at most {max(1, split.training_rows)}."
        yield Problem("training_file", message, TooFewRows.code, fix)
    elif (steps := total_steps(asked, split.training_rows)) > MAX_STEPS:
        message = f"makes {steps} steps, more than {MAX_STEPS}"
        fix = "Train fewer epochs, or take more prompts per step."
        yield Problem(plan.path("hyperparameters.n_epochs"), message, "too_many_steps", fix)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
