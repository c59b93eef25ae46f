import sys

import numpy as np
import pytest

from core.reward_source import analyse
from worker.grading.child import execute
from worker.grading.grades import Grade, GradeOutcome, Rollout, combine
from worker.grading.signatures import MAX_METRICS, call

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


@pytest.fixture(autouse=True)
def _forget_the_module():
    yield
    sys.modules.pop("reward", None)


def grade(source: str, *rollouts: Rollout, step: int = 0) -> list[Grade]:
    entry = analyse(source)
    return call(vars(execute(source))[entry.name], entry, rollouts, step)


def rollout(completion="2", prompt="1+1?", ids=(5, 6), **columns) -> Rollout:
    return Rollout(prompt, completion, list(ids), columns)


def values(grades: list[Grade]) -> list[float | None]:
    return [one.value for one in grades]


def outcomes(grades: list[Grade]) -> list[str]:
    return [one.outcome.value for one in grades]


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
def reward(solution_str, ground_truth, **kw):
    assert kw == {"prompt": "1+1?", "level": 1}
    return solution_str == ground_truth
"""
    assert values(grade(source, rollout(ground_truth="2", level=1))) == [1.0]


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


# What may come back.


@pytest.mark.parametrize(
    ("returned", "value"),
    [
        (1, 1.0),
        (True, 1.0),
        (-0.5, -0.5),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
    ],
)
def test_real_numbers_are_rewards(returned, value):
    entry = analyse("def reward(completion): ...")
    assert values(call(lambda completion: returned, entry, [rollout()])) == [value]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("float('nan')", "returned NaN"),
        ("float('-inf')", "returned -inf"),
        ("1e31", "at most 1e+30"),
        ("10 ** 400", "returned inf"),
        ("'1.0'", "returned str, not a number"),
        ("[1.0]", "returned list, not a number"),
        ("1j", "returned complex, not a number"),
        ("{'acc': 1}", "without `score` or `reward`"),
        ("(x for x in [1])", "returned generator"),
    ],
)
def test_other_values_are_user_errors_and_never_numbers(expression, message):
    (one,) = grade(f"def reward(completion): return {expression}", rollout())
    assert (one.outcome, one.value) == (GradeOutcome.USER_ERROR, None)
    assert message in one.message
    batch = grade(f"def f(completions): return [1.0, {expression}, None]", rollout(), rollout(), rollout())
    assert outcomes(batch) == ["scored", "user_error", "no_answer"]
    assert message in batch[1].message
    assert "for index 1" in batch[1].message


def test_none_is_no_answer():
    assert outcomes(grade("def reward(completion): return None", rollout())) == ["no_answer"]


def test_array_of_rewards_is_a_list_of_them():
    entry = analyse("def f(completions): ...")
    assert values(call(lambda completions: np.array([0.5, 1.0]), entry, [rollout(), rollout()])) == [0.5, 1.0]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("[1.0]", "returned 1 rewards for 2 completions: none for index 1"),
        ("[1.0] * 3", "returned 3 rewards for 2 completions: index 2 has no completion"),
        ("1.0", "returned float, not a list of 2 rewards"),
        ("None", "returned NoneType, not a list"),
        ("'ab'", "returned str, not a list"),
    ],
)
def test_wrong_count_blanks_the_batch_and_names_the_index(expression, message):
    grades = grade(f"def f(completions): return {expression}", rollout(), rollout())
    assert outcomes(grades) == ["user_error", "user_error"]
    assert message in grades[0].message


def test_dictionary_gives_reward_and_metrics():
    source = "def reward(completion): return {'score': 0.5, 'acc': True, 'n': 3, 'pred': 'x', 'bad': float('nan')}"
    (one,) = grade(source, rollout())
    assert (one.value, one.metrics) == (0.5, {"acc": 1.0, "n": 3.0})
    (one,) = grade("def reward(completion): return {'reward': None, 'tried': 1}", rollout())
    assert (one.outcome, one.metrics) == (GradeOutcome.NO_ANSWER, {"tried": 1.0})


def test_log_metric_values_come_back_averaged_on_every_grade():
    source = """
def f(completions, log_metric, log_extra):
    log_extra("parsed", completions)
    for n in range(4):
        log_metric("parsed", n)
    return [1.0 for _ in completions]
"""
    assert [one.metrics for one in grade(source, rollout(), rollout())] == [{"parsed": 1.5}] * 2


def test_metrics_are_bounded():
    source = """
def f(completions, log_metric):
    for n in range(1000):
        log_metric(f"m{n}", n)
    return [{"score": 1, **{f"d{n}": n for n in range(1000)}}]
"""
    (one,) = grade(source, rollout())
    assert len(one.metrics) == 2 * MAX_METRICS


def test_metric_that_is_no_number_is_the_users_error():
    (one,) = grade("def f(completions, log_metric): log_metric('a', 'x')", rollout())
    assert "log_metric('a', ...) takes a finite number" in one.message


# When it raises.


def test_exception_is_a_user_error_with_the_frames_of_the_source_only():
    source = "def parse(text):\n    return int(text)\n\ndef reward(completion): return parse(completion)\n"
    good, bad = grade(source, rollout("2"), rollout("x"))
    assert good.value == 2.0
    assert bad.outcome is GradeOutcome.USER_ERROR
    assert bad.message == "ValueError: invalid literal for int() with base 10: 'x'"
    assert 'File "reward.py", line 2, in parse\n    return int(text)' in bad.traceback
    assert "signatures.py" not in bad.traceback


@pytest.mark.parametrize("statement", ["raise SystemExit(3)", "raise KeyboardInterrupt", "return reward(completion)"])
def test_nothing_that_reward_code_raises_gets_through(statement):
    assert outcomes(grade(f"def reward(completion):\n    {statement}", rollout())) == ["user_error"]


def test_error_text_is_bounded_and_storable():
    (one,) = grade("def reward(completion): raise ValueError('\\0\\ud800' + 'x' * 10**6)", rollout())
    assert len(one.message) < 600
    assert len(one.traceback) < 9000
    assert "\0" not in one.message + one.traceback
    (one.message + one.traceback).encode()


def test_exception_whose_text_raises_is_a_user_error():
    source = """
class Odd(Exception):
    def __str__(self): raise RuntimeError
def reward(completion): raise Odd
"""
    assert grade(source, rollout())[0].message.startswith("Odd")


def test_returned_object_that_raises_when_read_is_a_user_error():
    source = """
class Odd:
    def __getattr__(self, name): raise RuntimeError("no " + name)
def {name}({parameter}): return {returned}
"""
    one = source.format(name="reward", parameter="completion", returned="Odd()")
    batch = source.format(name="f", parameter="completions", returned="Odd()")
    assert outcomes(grade(one, rollout())) == ["user_error"]
    assert outcomes(grade(batch, rollout(), rollout())) == ["user_error"] * 2


def test_one_bad_row_does_not_blank_the_others_of_a_batch():
    source = "def f(completions): return [float(c) for c in completions]"
    grades = grade(source, rollout("1"), rollout("x"), rollout("3"))
    assert values(grades) == [1.0, None, 3.0]
    assert "ValueError" in grades[1].message


def test_batch_that_is_graded_again_sees_its_inputs_untouched():
    source = """
def f(prompts, completions, meta):
    assert all(meta), "emptied"
    for prompt, completion, one in zip(prompts, completions, meta):
        prompt.pop(), completion.pop(), one.clear()
    if len(completions) > 1:
        raise RuntimeError
    return [1.0]
"""
    grades = grade(source, rollout(prompt=CHAT, meta={"a": 1}), rollout(prompt=CHAT, meta={"a": 1}))
    assert values(grades) == [1.0, 1.0], grades
    assert len(CHAT) == 2


@pytest.mark.parametrize(
    ("prompt", "expression", "hint"),
    [
        ("1+1?", "completions[0][0]['content']", "completions are plain text here"),
        (CHAT, "completions[0].strip()", "completions are lists of messages here"),
    ],
)
def test_confusing_text_and_messages_is_explained(prompt, expression, hint):
    (one,) = grade(f"def f(completions): return [{expression}]", rollout(prompt=prompt))
    assert hint in one.message


# Grades and their sum.


@pytest.mark.parametrize(
    ("outcome", "value"), [("scored", None), ("scored", float("nan")), ("no_answer", 0.0), ("user_error", 0.0)]
)
def test_grade_cannot_hold_a_number_for_a_failure(outcome, value):
    with pytest.raises(ValueError, match="cannot have"):
        Grade(GradeOutcome(outcome), value)


def scored(value: float) -> Grade:
    return Grade(GradeOutcome.SCORED, value)


NO_ANSWER = Grade(GradeOutcome.NO_ANSWER)
WEIGHTS = {"a": 1.0, "b": 0.5, "c": -2.0}


@pytest.mark.parametrize(
    ("grades", "expected"),
    [
        ({"a": scored(1), "b": scored(1), "c": scored(0.25)}, 1.0),
        ({"a": NO_ANSWER, "b": scored(1), "c": scored(0.25)}, 0.0),
        ({"a": NO_ANSWER, "b": NO_ANSWER, "c": NO_ANSWER}, None),
        ({"a": scored(1), "b": scored(1), "c": Grade(GradeOutcome.USER_ERROR)}, None),
        ({"a": scored(1), "b": NO_ANSWER, "c": Grade(GradeOutcome.INFRASTRUCTURE_ERROR)}, None),
    ],
)
def test_sum_leaves_out_no_answer_and_is_blanked_by_any_error(grades, expected):
    assert combine(grades, WEIGHTS) == expected
