"""What a reward is given, in the form that it was written in.

TRL's batch form gets what TRL gives (`GRPOTrainer._calculate_rewards`): lists, where the completions of chat prompts
are `[{"role": "assistant", "content": ...}]`, and of the trainer's state only `global_step`. verifiers' functions get
prompt and completion as they are, text or messages. The other forms always get plain text.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from core.chat import ChatMessage
from core.reward_source import FORMS, GROUND_TRUTH, RewardEntry, RewardForm, sources
from core.strict_json import strict_json
from worker.grading.grades import Rollout
from worker.grading.logged import ExtraLog, MetricLog
from worker.grading.stand_ins import Message

_TRL_DROPS = frozenset({"prompt", "completion", "completion_ids"})
_ANSWER_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


_BY_NAME = frozenset({RewardForm.TRL, RewardForm.OPENAI, RewardForm.PER_SAMPLE})
"""Forms whose functions see of prompt and tokens only what their parameters name."""


def as_json(rollout: Rollout, entry: RewardEntry | None) -> dict[str, Any]:
    """What goes to the grading process: without the long parts that the function does not take.

    Of a prompt that is not taken, its kind is left: whether it is text or messages decides what completions are.
    """
    prompt, ids = rollout.prompt, rollout.completion_ids
    if entry is not None and entry.form in _BY_NAME and not entry.takes_kwargs:
        if "prompt" not in entry.provided and "prompts" not in entry.provided:
            prompt = "" if isinstance(prompt, str) else []
        if "completion_ids" not in entry.provided:
            ids = []
    return {"prompt": prompt, "completion": rollout.completion, "completion_ids": ids, "columns": rollout.columns}


def batch_arguments(
    entry: RewardEntry, rollouts: Sequence[Rollout], step: int, metrics: MetricLog, extra: ExtraLog
) -> dict[str, Any]:
    """Copies: what a function does to them is not seen when it is called again."""
    provided = {
        "prompts": [copy.deepcopy(rollout.prompt) for rollout in rollouts],
        "completions": [_as_prompted(rollout) for rollout in rollouts],
        "completion_ids": [list(rollout.completion_ids) for rollout in rollouts],
        "trainer_state": SimpleNamespace(global_step=step),
        "log_extra": extra.add,
        "log_metric": metrics.add,
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


def binder(entry: RewardEntry) -> Callable[[Rollout], dict[str, Any]]:
    """What makes the arguments for one completion; what the entry decides is decided once for all of them.

    Columns that the row lacks are not passed: Python itself says which one is missing.
    """
    provide = _provider(entry)
    wanted = None if entry.takes_kwargs else frozenset(entry.provided)
    has_row = FORMS[entry.form].row is not None
    columns_of = _column_reader(entry)

    def arguments(rollout: Rollout) -> dict[str, Any]:
        provided = provide(rollout)
        if wanted is not None:
            provided = {name: value for name, value in provided.items() if name in wanted}
        return provided if has_row else {**columns_of(rollout.columns), **provided}

    return arguments


def _provider(entry: RewardEntry) -> Callable[[Rollout], dict[str, Any]]:
    match entry.form:
        case RewardForm.OPENAI:
            return lambda rollout: {"sample": _openai_sample(rollout.completion), "item": dict(rollout.columns)}
        case RewardForm.VERL | RewardForm.OSMOSIS:
            return _verl
        case RewardForm.PREDIBASE:
            return _predibase
        case RewardForm.REWARD_KIT:
            return _reward_kit
        case RewardForm.VERIFIERS:
            return _verifiers
        case RewardForm.REASONING_GYM:
            return _reasoning_gym
        case _:
            completion = entry.provided[0]
            if "prompt" not in entry.provided and not entry.takes_kwargs:
                return lambda rollout: {completion: rollout.completion}
            return lambda rollout: {completion: rollout.completion, "prompt": _text(rollout.prompt)}


def _column_reader(entry: RewardEntry) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """The columns that the function names, or all of them; a `ground_truth` also from where verl keeps it."""
    names = frozenset((*entry.columns, *entry.optional_columns))
    truth, *stand_ins = sources(entry.form, GROUND_TRUTH[0])
    takes_all = entry.takes_kwargs
    may_stand_in = bool(stand_ins) and (truth in names or takes_all)

    def read(columns: Mapping[str, Any]) -> dict[str, Any]:
        row = dict(columns) if takes_all else {name: value for name, value in columns.items() if name in names}
        if may_stand_in and truth not in row:
            found = (_inner_truth(columns.get(name)) for name in stand_ins)
            value = next((value for value in found if value is not None), None)
            return row if value is None else {**row, truth: value}
        return row

    return read


def _inner_truth(value: Any) -> Any:
    return value.get(GROUND_TRUTH[0]) if isinstance(value, Mapping) else value


def _verl(rollout: Rollout) -> dict[str, Any]:
    extra_info = rollout.columns.get("extra_info") or {}
    return {"solution_str": rollout.completion, "extra_info": extra_info, "prompt": _text(rollout.prompt)}


def _predibase(rollout: Rollout) -> dict[str, Any]:
    prompt = _text(rollout.prompt)
    return {"prompt": prompt, "completion": rollout.completion, "example": {"prompt": prompt, **rollout.columns}}


def _reward_kit(rollout: Rollout) -> dict[str, Any]:
    messages = [Message(**message) for message in [*_messages(rollout.prompt), _answer(rollout.completion)]]
    return {"messages": messages, "original_messages": messages[:-1], "prompt": _text(rollout.prompt)}


def _reasoning_gym(rollout: Rollout) -> dict[str, Any]:
    entry = {"question": _text(rollout.prompt), **rollout.columns}
    return {"answer": _tagged(rollout.completion), "entry": entry}


def _verifiers(rollout: Rollout) -> dict[str, Any]:
    """verifiers v0 shows rubric functions the rollout's parts by name, and all of them again in `state`."""
    columns = rollout.columns
    parts = {
        "prompt": copy.deepcopy(rollout.prompt),
        "completion": _as_prompted(rollout),
        "info": copy.deepcopy(columns.get("info") or {}),
        "task": columns.get("task") or "default",
    }
    return {**parts, "state": {**parts, "answer": columns.get("answer", ""), "turn": 1}}


def _as_prompted(rollout: Rollout) -> str | list[ChatMessage]:
    """Text after a text prompt; after chat a list with the assistant's message."""
    return rollout.completion if isinstance(rollout.prompt, str) else [_answer(rollout.completion)]


def _answer(text: str) -> ChatMessage:
    return ChatMessage(role="assistant", content=text)


def _messages(prompt: str | list[ChatMessage]) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=prompt)] if isinstance(prompt, str) else prompt


def _text(prompt: str | list[ChatMessage]) -> str:
    """A chat prompt as text: its messages, a blank line between them."""
    return prompt if isinstance(prompt, str) else "\n\n".join(message["content"] for message in prompt)


def _tagged(completion: str) -> str:
    """What stands in the last answer tags, as reasoning-gym's own trainers take it; else the whole completion."""
    found = _ANSWER_TAGS.findall(completion)
    return (found[-1] if found else completion).strip()


def _openai_sample(completion: str) -> dict[str, Any]:
    """The `sample` of OpenAI's python grader; `output_json` is None where the completion is not JSON."""
    try:
        output_json = strict_json(completion)
    except (ValueError, RecursionError):
        output_json = None
    return {
        "output_text": completion,
        "output_json": output_json,
        "output_tools": [],
        "choices": [{"index": 0, "message": _answer(completion), "finish_reason": "stop"}],
    }
