"""Every form that people have rewards in: chosen by parameter names, given what it expects, unchanged."""

import sys

import pytest

from core.errors import InvalidReward
from core.reward_source import FORMS, RewardForm, analyse, bind
from tests.grading import CHAT, grade, rollout, values
from worker.grading.grades import GradeOutcome, Rollout


@pytest.fixture(autouse=True)
def _forget_the_module():
    before = set(sys.modules)
    yield
    for name in {"reward", *(set(sys.modules) - before)}:
        if name.partition(".")[0] in {"reward", "reward_kit", "eval_protocol", "osmosis_ai"}:
            sys.modules.pop(name, None)


# The choice.


@pytest.mark.parametrize(
    ("signature", "form"),
    [
        ("completions, **kwargs", "trl"),
        ("prompts, completions, answer", "trl"),
        ("sample, item", "openai"),
        ("completion, answer", "per_sample"),
        ("prompt, response, gold", "per_sample"),
        ("prompt, completion, example", "predibase"),
        ("data_source, solution_str, ground_truth, extra_info=None", "verl"),
        ("solution_str, ground_truth, extra_info=None, **kwargs", "osmosis"),
        ("messages, ground_truth=None, **kwargs", "reward_kit"),
        ("messages, original_messages=None, **kwargs", "reward_kit"),
        ("prompt, completion, answer, state, **kwargs", "verifiers"),
        ("answer, entry", "reasoning_gym"),
    ],
)
def test_form_is_chosen_by_parameter_names(signature, form):
    entry = analyse(f"def f({signature}): ...")
    assert entry.form == form
    assert analyse(f"def f({signature}): ...", form=RewardForm(form)) == entry


def test_unknown_form_is_refused_with_the_list_of_those_that_are_accepted():
    with pytest.raises(InvalidReward) as caught:
        analyse("def reward(prediction, target): ...")
    assert "`reward(prediction, target)` is in none of the forms" in caught.value.message
    assert all(rule.signature in caught.value.fix for rule in FORMS.values())


def test_form_that_is_named_overrides_the_names():
    source = "def reward(completion, answer):\n    return completion[-1]['content'] == answer"
    assert values(grade(source, rollout(prompt=CHAT, answer="2"), form=RewardForm.VERIFIERS)) == [1.0]
    batch = "def f(**columns):\n    return [float(text == '2') for text in columns['completions']]"
    assert values(grade(batch, rollout(), rollout("3"), form=RewardForm.TRL)) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("signature", "form", "message"),
    [
        ("text, gold", "per_sample", "cannot be called as `per_sample`: it does not take `completion`"),
        ("completion, answer", "openai", "does not take `sample` and `item`"),
        ("completion, answer", "verl", "does not take `solution_str` and `data_source`"),
        ("completion, example, level", "predibase", "needs more than `completion` and `example`"),
        ("parser, completion, answer", "verifiers", "takes a `parser`"),
    ],
)
def test_form_that_a_function_cannot_be_called_in_is_refused(signature, form, message):
    with pytest.raises(InvalidReward) as caught:
        analyse(f"def reward({signature}): ...", form=RewardForm(form))
    assert message in caught.value.message


# Columns.


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("def f(completion, example): return example['gold'] + example.get('level', 0)", ("gold",)),
        ("def f(prompt, completion, example): return example['prompt']", ()),
        ("def score_answer(answer, entry): return entry['question'] + entry['metadata']['x']", ("metadata",)),
        ("def f(messages, ground_truth, **kw): ...", ("ground_truth",)),
        ("def f(messages, ground_truth=None, **kw): ...", ()),
        ("def f(completion, answer, state, info, task): ...", ("answer",)),
        ("def f(solution_str, ground_truth, extra_info): ...", ("ground_truth",)),
    ],
)
def test_columns_are_what_a_form_does_not_provide(source, needed):
    assert analyse(source).columns == needed


@pytest.mark.parametrize("column", ["ground_truth", "reward_model", "reward_model.ground_truth"])
def test_ground_truth_is_found_where_verl_keeps_it(column):
    source = "def compute_score(data_source, solution_str, ground_truth): ..."
    assert bind(analyse(source), ["data_source", column]) == []
    (problem,) = bind(analyse("def f(completion, ground_truth): ..."), ["reward_model"])
    assert problem.code == "missing_column"


# What each form is given.


def test_trl_form_gets_strings_and_columns_as_lists():
    source = """
def f(prompts, completions, completion_ids, answer, **kwargs):
    assert prompts == ["1+1?", "2+2?"] and completions == ["2", "5"] and completion_ids == [[5, 6], [7]]
    assert sorted(kwargs) == ["level", "log_extra", "log_metric", "trainer_state"], sorted(kwargs)
    assert kwargs["level"] == [1, None] and kwargs["trainer_state"].global_step == 7
    return [float(c == a) for c, a in zip(completions, answer)]
"""
    grades = grade(source, rollout(answer="2", level=1), rollout("5", "2+2?", [7], answer="4"), step=7)
    assert values(grades) == [1.0, 0.0], grades


def test_trl_form_gets_message_lists_for_chat_prompts():
    source = """
def f(prompts, completions):
    assert prompts[0][-1] == {"role": "user", "content": "1+1?"}
    assert completions == [[{"role": "assistant", "content": "2"}]]
    return [1.0]
"""
    assert values(grade(source, rollout(prompt=CHAT))) == [1.0]


def test_trl_function_without_kwargs_gets_only_what_it_names():
    source = "def f(completions, answer, hint=None):\n    return [float(hint is None and answer == ['2'])]"
    assert values(grade(source, rollout(answer="2", other=1))) == [1.0]


def test_columns_never_replace_what_trl_provides():
    source = """
def f(completions, **kwargs):
    assert "completion" not in kwargs and kwargs["prompts"] == ["1+1?"]
    return [float(completions == ["2"])]
"""
    columns = {"completions": "x", "prompts": "x", "completion": "x", "completion_ids": "x", "prompt_id": 1}
    assert values(grade(source, Rollout("1+1?", "2", [5], columns))) == [1.0]


def test_async_functions_are_awaited():
    source = """
import asyncio
async def f(completions):
    await asyncio.sleep(0)
    return [1.0 for _ in completions]
"""
    assert values(grade(source, rollout(), rollout())) == [1.0, 1.0]
    assert values(grade("async def reward(completion): return 0.5", rollout())) == [0.5]


def test_per_sample_form_gets_plain_text_even_for_chat_prompts():
    source = """
def reward(prompt, completion, answer, level=3):
    assert prompt == "Be brief.\\n\\n1+1?" and completion == "2" and level == 3
    return completion == answer
"""
    assert values(grade(source, rollout(prompt=CHAT, answer="2", other=1))) == [1.0]


def test_per_sample_kwargs_take_every_column():
    source = """
def reward(response, gold, **kw):
    assert kw == {"prompt": "1+1?", "level": 1}
    return response == gold
"""
    assert values(grade(source, rollout(gold="2", level=1))) == [1.0]


def test_column_that_a_row_lacks_is_named_by_the_error():
    (one,) = grade("def reward(completion, answer): return 1.0", rollout())
    assert one.outcome is GradeOutcome.USER_ERROR
    assert "'answer'" in one.message


def test_openai_form_gets_sample_and_item():
    source = """
def grade(sample, item):
    assert sample["choices"][0]["message"]["content"] == sample["output_text"]
    assert sample["output_json"] == {"a": 1} and item == {"gold": {"a": 1}}
    return sample["output_json"] == item["gold"]
"""
    assert values(grade(source, rollout('{"a": 1}', prompt=CHAT, gold={"a": 1}))) == [1.0]


@pytest.mark.parametrize("text", ["not json", "NaN", '{"a": ', "[" * 100_000, "9" * 5000, ""])
def test_openai_output_json_is_none_where_the_completion_is_not_json(text):
    source = "def grade(sample, item): return sample['output_json'] is None"
    assert values(grade(source, rollout(text))) == [1.0]


# Other ecosystems, as their rewards are written.

VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    assert data_source == "openai/gsm8k", data_source
    right = solution_str.rpartition("#### ")[2] == ground_truth
    return {"score": float(right), "acc": right, "pred": solution_str, "level": extra_info["level"]}
"""


@pytest.mark.parametrize(
    "truth",
    [
        {"reward_model": {"style": "rule", "ground_truth": "2"}},
        {"reward_model.ground_truth": "2"},
        {"ground_truth": "2", "reward_model": {"ground_truth": "3"}},
    ],
)
def test_verl(truth):
    row = {"data_source": "openai/gsm8k", "extra_info": {"level": 3}, **truth}
    (one,) = grade(VERL, Rollout(CHAT, "so #### 2", [1], row))
    assert (one.value, one.metrics) == (1.0, {"acc": 1.0, "level": 3.0}), one
    assert one.extra == {"pred": "so #### 2"}


def test_verl_without_its_columns_is_an_error_that_names_them():
    (one,) = grade(VERL, rollout(data_source="openai/gsm8k"))
    assert one.outcome is GradeOutcome.USER_ERROR
    assert "'ground_truth'" in one.message


def test_osmosis():
    source = """
from osmosis_ai import osmosis_reward

@osmosis_reward
def numbers_match(solution_str: str, ground_truth: str, extra_info: dict = None, **kwargs) -> float:
    assert extra_info == {} and kwargs["level"] == 1
    return 1.0 if solution_str.strip() == ground_truth else 0.0
"""
    assert values(grade(source, rollout(ground_truth="2", level=1), rollout("3", ground_truth="2", level=1))) == [1, 0]


def test_predibase():
    source = """
def correct(prompt: str, completion: str, example: dict[str, str]) -> float:
    import re
    assert prompt == example["prompt"] == "1+1?"
    return 1.0 if re.fullmatch(example["pattern"], completion) else 0.0
"""
    assert values(grade(source, rollout(pattern="[0-9]"), rollout("x", pattern="[0-9]"))) == [1.0, 0.0]


REWARD_KIT = """
from {library} import EvaluateResult, MetricResult, {more}reward_function

@reward_function{settings}
def evaluate(messages, original_messages=None, ground_truth=None, **kwargs):
    assert [m["role"] for m in messages] == ["system", "user", "assistant"]
    assert messages[:-1] == original_messages and kwargs["level"] == 1
    right = messages[-1].content == messages[-1].get("content") == ground_truth
    return EvaluateResult(
        score=float(right), reason="", metrics={{"right": MetricResult(score=0.25, is_score_valid=True, reason="x")}}
    )
"""


@pytest.mark.parametrize(
    ("library", "settings"),
    [
        ("reward_kit", ""),
        ("reward_kit.models", "(id='x')"),
        ("reward_kit.typed_interface", "()"),
        ("eval_protocol", ""),
    ],
)
def test_reward_kit(library, settings):
    source = REWARD_KIT.format(library=library, settings=settings, more="Message, ")
    (one,) = grade(source, rollout(prompt=CHAT, ground_truth="2", level=1))
    assert (one.value, one.metrics) == (1.0, {"right": 0.25}), one


def test_reward_kit_messages_are_messages_and_dictionaries():
    source = """
from reward_kit.models import Message
def f(messages): return all(isinstance(m, Message) and isinstance(m, dict) for m in messages) and len(messages)
"""
    assert values(grade(source, rollout())) == [2.0]


@pytest.mark.parametrize(
    "line",
    [
        "from eval_protocol.pytest import evaluation_test",
        "from eval_protocol import evaluation_test",
        "import reward_kit.rewards.accuracy",
        "import verifiers as vf",
    ],
)
def test_import_of_more_than_the_stand_ins_offer_is_refused(line):
    with pytest.raises(InvalidReward) as caught:
        analyse(f"{line}\ndef f(messages): ...")
    assert caught.value.problems[0].code == "unknown_import"
    assert "line 1" in caught.value.message


@pytest.mark.parametrize(("prompt", "given"), [("1+1?", "2"), (CHAT, [{"role": "assistant", "content": "2"}])])
def test_verifiers_gets_text_or_messages_as_the_prompt_is(prompt, given):
    source = f"""
async def exact(prompt, completion, answer, state, **kwargs):
    assert completion == state["completion"] == {given!r} and prompt == state["prompt"] == {prompt!r}
    assert state["answer"] == answer == "2" and state["info"] == {{"level": 1}} and kwargs["task"] == "default"
    return 0.5
"""
    assert values(grade(source, rollout(prompt=prompt, answer="2", info={"level": 1}))) == [0.5]


@pytest.mark.parametrize("completion", ["2", "thus <answer>3</answer> or <answer> 2 </answer>"])
def test_reasoning_gym_gets_the_tagged_answer(completion):
    source = """
def score_answer(answer, entry):
    assert entry["question"] == "1+1?" and entry["metadata"] == {"seed": 1}
    return float(answer == entry["answer"])
"""
    assert values(grade(source, rollout(completion, answer="2", metadata={"seed": 1}))) == [1.0]


def test_rows_stay_as_they_were_for_the_next_call():
    source = "def f(messages, info):\n    assert info\n    messages[0]['content'] = ''\n    return len(messages[0])"
    one = rollout(prompt=CHAT, info=[1])
    assert values(grade(source, one, one)) == [2.0, 2.0]
    assert CHAT[0]["content"] == "Be brief."
