"""Calling a reward in the form it was written in, and reading what it returns. Pure; runs inside the child.

TRL's batch form gets what TRL gives (`GRPOTrainer._calculate_rewards`): lists, where the completions of chat prompts
are `[{"role": "assistant", "content": ...}]`; of the trainer's state only `global_step`; `log_extra` is accepted and
dropped. The forms for one completion always get plain text.
"""

import asyncio
import copy
import inspect
import json
import math
import numbers
import time
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Never

from core.reward_source import RewardEntry, RewardForm
from core.rows import ChatMessage
from worker.grading.grades import Grade, GradeOutcome, Rollout

SOURCE_NAME = "reward.py"
"""The file name that reward code is compiled under: tracebacks show this file only."""
MAX_REWARD = 1e30
"""Weighted sums stay finite in TRL's 32-bit floats; one infinite reward would blank its whole group there."""
MAX_METRICS = 64

_TRL_DROPS = frozenset({"prompt", "completion", "completion_ids"})
_SHAPE_ERRORS = ("TypeError", "AttributeError", "KeyError", "IndexError")


def call(function: Callable[..., Any], entry: RewardEntry, rollouts: Sequence[Rollout], step: int = 0) -> list[Grade]:
    """Grade `rollouts` at the trainer's `step`: one grade each, in order, whatever the function does.

    When a batch function raises, the batch is graded again one rollout at a time, so that one bad row does not blank
    the others. A batch function that compares the rollouts of a batch gets groups of one there.
    """
    if entry.form is not RewardForm.TRL:
        return [_call_one(function, _one_arguments(entry, rollout)) for rollout in rollouts]
    grades = _call_batch(function, entry, rollouts, step)
    if isinstance(grades, list):
        return grades
    if len(rollouts) == 1:
        return [grades]
    alone = (_call_batch(function, entry, [rollout], step) for rollout in rollouts)
    return [grade if isinstance(grade, Grade) else grade[0] for grade in alone]


def user_error(error: BaseException, latency_s: float = 0.0) -> Grade:
    """The grade for what reward code raised; frames outside of its source are left out."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename != SOURCE_NAME:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames, limit=-20))
    return Grade(
        GradeOutcome.USER_ERROR,
        message=_storable(_summary(error)),
        traceback=_storable(text[-8000:]),
        latency_s=latency_s,
    )


def _summary(error: BaseException) -> str:
    """`KeyError: 'answer'`, on one line."""
    try:
        text = " ".join(str(error)[:2000].split())[:500]
    except BaseException:  # noqa: BLE001 - `__str__` of an exception is user code too
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class UnusableRewardError(Exception):
    """What a reward returned is not a reward."""


@dataclass(frozen=True, slots=True)
class _Returned:
    value: Any
    seconds: float


def _call_one(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Grade:
    returned = _invoke(function, arguments)
    return returned if isinstance(returned, Grade) else _grade(returned.value, returned.seconds)


def _call_batch(
    function: Callable[..., Any], entry: RewardEntry, rollouts: Sequence[Rollout], step: int
) -> list[Grade] | Grade:
    """One grade each, or the one grade of the exception that the call raised."""
    log = _MetricLog()
    returned = _invoke(function, _batch_arguments(entry, rollouts, step, log))
    if isinstance(returned, Grade):
        return _with_hint(returned, rollouts)
    share = returned.seconds / len(rollouts)
    try:
        values = _values(returned.value, len(rollouts))
    except UnusableRewardError as error:
        return [_unusable(str(error), share)] * len(rollouts)
    except BaseException as error:  # noqa: BLE001 - a returned object's own methods are user code too
        return [user_error(error, share)] * len(rollouts)
    metrics = log.means()
    grades = [_grade(value, share, f" for index {index}") for index, value in enumerate(values)]
    return [replace(grade, metrics={**metrics, **grade.metrics}) for grade in grades]


def _invoke(function: Callable[..., Any], arguments: Mapping[str, Any]) -> _Returned | Grade:
    started = time.perf_counter()
    try:
        value = function(**arguments)
        if inspect.isawaitable(value):
            value = asyncio.run(_wait_for(value))
    except BaseException as error:  # noqa: BLE001 - SystemExit too: nothing that user code raises ends the child
        return user_error(error, time.perf_counter() - started)
    return _Returned(value, time.perf_counter() - started)


async def _wait_for(value: Awaitable[Any]) -> Any:
    return await value


def _batch_arguments(entry: RewardEntry, rollouts: Sequence[Rollout], step: int, log: "_MetricLog") -> dict[str, Any]:
    """Copies: what a function does to them is not seen when it is called again."""
    provided = {
        "prompts": [copy.deepcopy(rollout.prompt) for rollout in rollouts],
        "completions": [_trl_completion(rollout) for rollout in rollouts],
        "completion_ids": [list(rollout.completion_ids) for rollout in rollouts],
        "trainer_state": SimpleNamespace(global_step=step),
        "log_extra": lambda column, values: None,  # noqa: ARG005 - TRL's parameter names
        "log_metric": log.add,
    }
    present = dict.fromkeys(name for rollout in rollouts for name in rollout.columns)
    names = [name for name in present if name in entry.optional_columns or entry.takes_any]
    columns = {
        name: [copy.deepcopy(rollout.columns.get(name)) for rollout in rollouts]
        for name in (*entry.columns, *names)
        if name not in _TRL_DROPS
    }
    wanted = provided if entry.takes_any else {name: provided[name] for name in entry.provided}
    return {**columns, **wanted}


def _trl_completion(rollout: Rollout) -> str | list[ChatMessage]:
    if isinstance(rollout.prompt, str):
        return rollout.completion
    return [ChatMessage(role="assistant", content=rollout.completion)]


def _one_arguments(entry: RewardEntry, rollout: Rollout) -> dict[str, Any]:
    """For one completion. Columns that the row lacks are not passed: Python itself says which one is missing."""
    if entry.form is RewardForm.OPENAI:
        return {"sample": _openai_sample(rollout.completion), "item": dict(rollout.columns)}
    names = {*entry.columns, *entry.optional_columns}
    wanted = {name: value for name, value in rollout.columns.items() if name in names}
    if entry.takes_any:
        wanted = {**rollout.columns, "prompt": _text(rollout.prompt)}
    given = {entry.provided[0]: rollout.completion}
    if "prompt" in entry.provided:
        given["prompt"] = _text(rollout.prompt)
    return {**wanted, **given}


def _text(prompt: str | list[ChatMessage]) -> str:
    """A chat prompt as text: its messages, a blank line between them."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)


def _openai_sample(completion: str) -> dict[str, Any]:
    """The `sample` of OpenAI's python grader; `output_json` is None where the completion is not JSON."""
    try:
        output_json = json.loads(completion, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        output_json = None
    message = {"role": "assistant", "content": completion}
    return {
        "output_text": completion,
        "output_json": output_json,
        "output_tools": [],
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


class _MetricLog:
    """TRL's `log_metric`: values by name, averaged over the call."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        try:
            number = _number(value)
        except UnusableRewardError:
            raise TypeError(f"log_metric({name!r}, ...) takes a finite number") from None
        key = _storable(str(name)[:64])
        if len(self._values) < MAX_METRICS or key in self._values:
            self._values[key].append(number)

    def means(self) -> dict[str, float]:
        return {name: math.fsum(values) / len(values) for name, values in self._values.items()}


def _values(returned: object, count: int) -> list[Any]:
    """A batch function's rewards as a list; arrays are fine."""
    to_list = getattr(returned, "tolist", None)
    values = to_list() if callable(to_list) else returned
    if not isinstance(values, list | tuple):
        raise UnusableRewardError(f"returned {type(returned).__name__}, not a list of {count} rewards")
    values = list(values)
    if len(values) != count:
        lost = f"none for index {len(values)}" if len(values) < count else f"index {count} has no completion"
        raise UnusableRewardError(f"returned {len(values)} rewards for {count} completions: {lost}")
    return values


def _grade(value: Any, seconds: float, where: str = "") -> Grade:
    try:
        metrics: dict[str, float] = {}
        if isinstance(value, Mapping):
            value, metrics = _split(value)
        if value is None:
            return Grade(GradeOutcome.NO_ANSWER, metrics=metrics, latency_s=seconds)
        return Grade(GradeOutcome.SCORED, _number(value), metrics, latency_s=seconds)
    except UnusableRewardError as error:
        return _unusable(f"{error}{where}", seconds)
    except BaseException as error:  # noqa: BLE001 - a returned object's own methods are user code too
        return user_error(error, seconds)


def _split(returned: Mapping[Any, Any]) -> tuple[Any, dict[str, float]]:
    """The reward in a dictionary, and the numbers beside it; other values are left out."""
    key = next((key for key in ("score", "reward") if key in returned), None)
    if key is None:
        raise UnusableRewardError("returned a dictionary without `score` or `reward`")
    metrics: dict[str, float] = {}
    for name, value in returned.items():
        if name == key or not isinstance(value, numbers.Real) or len(metrics) == MAX_METRICS:
            continue
        number = float(value)
        if math.isfinite(number):
            metrics[_storable(str(name)[:64])] = number
    return returned[key], metrics


def _number(value: Any) -> float:
    """A reward as a float: any real number (a boolean is 0 or 1), or a scalar of an array library."""
    if not isinstance(value, numbers.Real) and getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise UnusableRewardError(f"returned {type(value).__name__}, not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number):
        raise UnusableRewardError("returned NaN (return None where the reward does not apply)")
    if abs(number) > MAX_REWARD:
        raise UnusableRewardError(f"returned {number:g}, but rewards are at most {MAX_REWARD:g}")
    return number


def _unusable(message: str, seconds: float) -> Grade:
    return Grade(GradeOutcome.USER_ERROR, message=f"the reward {message}", latency_s=seconds)


def _with_hint(grade: Grade, rollouts: Sequence[Rollout]) -> Grade:
    """Text or messages is what batch functions are most often wrong about; say which one it was."""
    assert grade.message is not None
    if not grade.message.startswith(_SHAPE_ERRORS):
        return grade
    if isinstance(rollouts[0].prompt, str):
        hint = "completions are plain text here, because the prompts are"
    else:
        hint = "completions are lists of messages here, because the prompts are: read completion[0]['content']"
    return replace(grade, message=f"{grade.message} ({hint})")


def _storable(text: str) -> str:
    """Text that JSON and Postgres can keep: NUL and lone surrogates become visible escapes."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
