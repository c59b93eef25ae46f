"""Rows in; the prompts that are trained on and the held-out tasks out."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from jinja2 import TemplateError
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from core.rows import Row, canonical_prompt_sha256, read_rows
from core.spec import JobSpec
from core.split import FEWEST_TASKS, held_out_prompts
from worker.run_directory import RunDirectory
from worker.training.failures import DataUnusable, ModelUnusable, NoChatTemplate

_KINDS: Mapping[type, str] = {str: "text", list: "a list of messages"}


@dataclass(frozen=True, slots=True)
class Task:
    """One held-out row, ready to be answered."""

    row: Row
    prompt_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunData:
    training: tuple[Row, ...]
    held_out: tuple[Task, ...]
    overlap_rows: int
    """Held-out rows whose prompt also stands in the training rows."""
    left_out: int
    """Rows of both whose prompt is longer than `max_prompt_length`."""


def load_data(run: RunDirectory, spec: JobSpec, tokenizer: PreTrainedTokenizerBase) -> RunData:
    rows = tuple(read_rows(run.training_file, spec.training.format))
    if spec.held_out is None:
        training, held_out = split_rows(rows, spec.evaluation.held_out_fraction, spec.seed)
    else:
        training, held_out = rows, tuple(read_rows(run.held_out_file, spec.held_out.format))
    limit = spec.hyperparameters.max_prompt_length
    arguments = spec.chat_template_kwargs
    tasks = [Task(row, ids) for row, ids in zip(held_out, tokenize(tokenizer, held_out, arguments), strict=True)]
    short_training = _short(tokenizer, training, arguments, limit)
    short_tasks = tuple(task for task in tasks if limit is None or len(task.prompt_ids) <= limit)
    _require_enough(short_training, short_tasks, spec)
    trained_on = {canonical_prompt_sha256(row) for row in short_training}
    return RunData(
        training=short_training,
        held_out=short_tasks,
        overlap_rows=sum(canonical_prompt_sha256(task.row) in trained_on for task in short_tasks),
        left_out=len(training) - len(short_training) + len(tasks) - len(short_tasks),
    )


def split_rows(rows: Sequence[Row], fraction: float, seed: int) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
    """Training and held-out rows, in file order. Rows with the same prompt stay together, so nothing overlaps."""
    prompts = list(dict.fromkeys(canonical_prompt_sha256(row) for row in rows))
    random.Random(seed).shuffle(prompts)
    held_out = set(prompts[: held_out_prompts(len(prompts), fraction)])
    inside = tuple(row for row in rows if canonical_prompt_sha256(row) in held_out)
    return tuple(row for row in rows if canonical_prompt_sha256(row) not in held_out), inside


def training_set(rows: Sequence[Row], prompts_per_step: int) -> Dataset:
    """What TRL samples from: `prompt`, and `row`, the place in `rows`. TRL's sampler walks through it epoch by epoch.

    The reward's columns stay in `rows`: Arrow would give every value of a column one type and fill objects up with
    null keys, and TRL takes columns called `image` or `environment` for its own. TRL drops what does not fill a
    step, so too few rows for one step are repeated.
    """
    prompts = uniform_prompts(rows)
    places = list(range(len(rows))) * math.ceil(prompts_per_step / len(rows))
    return Dataset.from_dict({"prompt": [prompts[place] for place in places], "row": places})


def tokenize(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], chat_template_kwargs: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """Token ids of each prompt, exactly as TRL's `_tokenize_prompts` makes them."""
    if not rows:
        return []
    prompts = uniform_prompts(rows)
    if isinstance(prompts[0], str):
        ids = tokenizer(text=prompts)["input_ids"]
    else:
        ids = _apply_template(tokenizer, prompts, chat_template_kwargs)
    return [tuple(one) for one in ids]


def uniform_prompts(rows: Sequence[Row]) -> list[Any]:
    """All texts, or all chats: TRL looks at the first prompt of a batch and believes that the others are like it."""
    kind = type(rows[0].prompt)
    odd = next((row for row in rows if type(row.prompt) is not kind), None)
    if odd is not None:
        raise DataUnusable(
            f"The prompt of line {odd.line} is {_KINDS[type(odd.prompt)]}, that of line {rows[0].line} {_KINDS[kind]}.",
            fix="Use one kind of prompt in a file.",
        )
    return [row.prompt for row in rows]


def _apply_template(
    tokenizer: PreTrainedTokenizerBase, prompts: list[Any], chat_template_kwargs: Mapping[str, Any]
) -> Any:
    if not tokenizer.chat_template:
        raise NoChatTemplate("The prompts are chat messages, but the model's tokenizer has no chat template.")
    try:
        encoded = tokenizer.apply_chat_template(
            conversation=prompts, add_generation_prompt=True, tokenize=True, return_dict=True, **chat_template_kwargs
        )
    except TemplateError as error:
        raise ModelUnusable(
            f"The model's chat template refuses the prompts: {error}", fix="Use the roles that the template knows."
        ) from error
    return encoded["input_ids"]


def _short(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Row], arguments: Mapping[str, Any], limit: int | None
) -> tuple[Row, ...]:
    """The rows within the limit. Without one, only the first is tokenised: to see that the tokenizer takes its kind."""
    if limit is None:
        tokenize(tokenizer, rows[:1], arguments)
        return tuple(rows)
    ids = tokenize(tokenizer, rows, arguments)
    return tuple(row for row, one in zip(rows, ids, strict=True) if len(one) <= limit)


def _require_enough(training: Sequence[Row], tasks: Sequence[Task], spec: JobSpec) -> None:
    limit = spec.hyperparameters.max_prompt_length
    shortened = f" once prompts over {limit} tokens are left out" if limit is not None else ""
    if not training:
        raise DataUnusable(f"There are no training rows{shortened}.", fix="Add rows, or raise max_prompt_length.")
    prompts = len({canonical_prompt_sha256(task.row) for task in tasks})
    if prompts < FEWEST_TASKS:
        raise DataUnusable(
            f"There are {prompts} held-out tasks{shortened}; at least {FEWEST_TASKS} are needed.",
            fix="Give a validation file, raise evaluation.held_out_fraction, or raise max_prompt_length.",
        )
