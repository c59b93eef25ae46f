"""What rewards return, what they raise, and how long they take: from a call to grades."""

import signal
import sys

import numpy as np
import pytest

from core.reward_source import analyse
from tests.grading import CHAT, grade, outcomes, rollout, values
from worker.grading.grades import Grade, GradeOutcome, combine
from worker.grading.logged import MAX_EXTRA_CHARS, MAX_EXTRA_COLUMNS, MAX_METRICS
from worker.grading.signatures import call


@pytest.fixture(autouse=True)
def _forget_the_module():
    yield
    sys.modules.pop("reward", None)


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
    assert (one.value, one.metrics, one.extra) == (0.5, {"acc": 1.0, "n": 3.0}, {"pred": "x"})
    (one,) = grade("def reward(completion): return {'reward': None, 'tried': 1}", rollout())
    assert (one.outcome, one.metrics) == (GradeOutcome.NO_ANSWER, {"tried": 1.0})


def test_log_extra_values_come_back_with_their_rollouts():
    source = """
def f(completions, log_extra):
    log_extra("upper", [c.upper() for c in completions])
    log_extra("right", [True])
    log_extra("odd", [{"a": 1}, float("nan")])
    return [1.0 for _ in completions]
"""
    first, second = grade(source, rollout("a"), rollout("b\0\ud800"))
    assert first.extra == {"upper": "A", "right": True, "odd": "{'a': 1}"}
    assert second.extra == {"upper": "B\\0\\ud800", "odd": "nan"}


def test_log_extra_is_bounded():
    source = """
def f(completions, log_extra):
    for n in range(1000):
        log_extra(f"c{n}", ["x" * 10**6])
    return [1.0]
"""
    (one,) = grade(source, rollout())
    assert len(one.extra) == MAX_EXTRA_COLUMNS
    assert len(one.extra["c0"]) == MAX_EXTRA_CHARS


def test_log_metric_values_come_back_averaged_on_every_grade():
    source = """
def f(completions, log_metric):
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


OBJECT = """
class Result:
    def __init__(self, **fields): vars(self).update(fields)
def reward(completion): return {}
"""


def test_object_with_a_score_gives_reward_and_metrics():
    source = OBJECT.format("Result(score=0.5, is_score_valid=True, metrics={'a': Result(score=1), 'b': 0.25})")
    (one,) = grade(source, rollout())
    assert (one.value, one.metrics) == (0.5, {"a": 1.0, "b": 0.25})
    assert outcomes(grade(OBJECT.format("Result(score=None)"), rollout())) == ["no_answer"]
    assert "returned str, not a number" in grade(OBJECT.format("Result(score='1')"), rollout())[0].message


@pytest.mark.parametrize(
    "returned",
    [
        "Result(score=0.0, is_score_valid=False, reason='no json')",
        "dict(score=0.0, is_score_valid=False, reason='no json')",
    ],
)
def test_score_that_is_said_to_be_invalid_is_an_error_and_never_a_number(returned):
    (one,) = grade(OBJECT.format(returned), rollout())
    assert (one.outcome, one.value) == (GradeOutcome.USER_ERROR, None)
    assert "no json" in one.message


# When it takes too long.

SLOW = """
import time
def {}:
    while "slow" in str(locals()):
        {}
    return {}
"""


@pytest.mark.parametrize("loop", ["pass", "time.sleep(60)", "try: time.sleep(60)\n        except BaseException: pass"])
def test_rollout_over_its_deadline_is_a_timeout_and_the_others_are_graded(loop):
    source = SLOW.format("reward(completion)", loop, "1.0")
    if "except" in loop:
        source = source.replace("BaseException: pass", "BaseException: return 0.0")
    grades = grade(source, rollout("a"), rollout("slow"), rollout("b"), item_deadline_s=0.1)
    assert values(grades) == [1.0, None, 1.0]
    assert (grades[1].outcome, grades[1].timed_out) == (GradeOutcome.INFRASTRUCTURE_ERROR, True)
    assert "no answer within 0.1 s" in grades[1].message
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize("form", ["f(completions)", "async f(completions)"])
def test_batch_over_its_deadline_is_graded_one_by_one(form):
    source = SLOW.format("f(completions)", "time.sleep(60)", "[1.0 for _ in completions]")
    if form.startswith("async"):
        source = source.replace("import time", "import asyncio").replace("def f", "async def f")
        source = source.replace("time.sleep", "await asyncio.sleep")
    grades = grade(source, rollout("a"), rollout("slow"), item_deadline_s=0.1)
    assert values(grades) == [1.0, None], grades
    assert grades[1].timed_out


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
