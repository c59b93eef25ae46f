"""Real grading processes: what they are asked, what they see, what they say."""

import os

import pytest

from core.errors import InvalidReward
from core.reward_source import RewardForm
from tests.grading import on, rollout, values
from worker.grading.client import GradeOutcome, GraderFailed
from worker.grading.process import LOG_BYTES

INFRASTRUCTURE_ERROR = GradeOutcome.INFRASTRUCTURE_ERROR


# Grading.


def test_rewards_are_graded_in_order_with_their_columns(grader):
    one = grader("def reward(completion, answer): return completion == answer")
    assert values(one.grade([rollout("2", answer="2"), rollout("3", answer="2")])) == [1.0, 0.0]
    assert one.entry.columns == ("answer",)
    assert one.grade([]) == []


def test_trl_form_gets_chat_and_step_through_the_process(grader):
    one = grader("""
def f(prompts, completions, completion_ids, trainer_state, log_metric):
    log_metric("step", trainer_state.global_step)
    return [float(p[0]["role"] == "user" and c[0]["content"] == "2" and i == [5, 6])
            for p, c, i in zip(prompts, completions, completion_ids)]
""")
    grades = one.grade([rollout(prompt=[{"role": "user", "content": "1+1?"}])] * 2, step=7)
    assert [(grade.value, grade.metrics) for grade in grades] == [(1.0, {"step": 7.0})] * 2


@pytest.mark.parametrize("library", ["numpy", "scipy", "sympy", "regex", "mpmath"])
def test_declared_libraries_can_be_imported(grader, library):
    one = grader(f"import {library} as x\ndef reward(completion): return float(bool(x.__name__))")
    assert values(one.grade([rollout()])) == [1.0]


def test_module_state_lasts_between_batches(grader):
    one = grader("calls = []\ndef reward(completion):\n    calls.append(1)\n    return len(calls)")
    assert values(one.grade([rollout()] * 2) + one.grade([rollout()])) == [1.0, 2.0, 3.0]


def test_exception_none_and_nan_cost_only_their_own_rollout(grader):
    source = "def reward(completion): return {'n': None, 'x': float('nan')}.get(completion) or float(completion)"
    one = grader(source.replace("or", "if completion in 'nx' else"))
    grades = one.grade([rollout("1"), rollout("n"), rollout("x"), rollout("bad"), rollout("5")])
    outcomes = [grade.outcome.value for grade in grades]
    assert outcomes == ["scored", "no_answer", "user_error", "user_error", "scored"]
    assert 'File "reward.py", line 1, in reward' in grades[3].traceback
    assert one.restarts == 0


def test_wrong_count_is_a_user_error_naming_the_index(grader):
    grades = grader("def f(completions): return [1.0]").grade([rollout()] * 3)
    assert [grade.outcome for grade in grades] == [GradeOutcome.USER_ERROR] * 3
    assert "none for index 1" in grades[0].message


def test_text_survives_the_trip(grader):
    one = grader("def reward(completion): return [ord(c) for c in completion] == [0, 0xd800, 0x1f600]")
    assert values(one.grade([rollout("\0\ud800😀")])) == [1.0]


def test_inputs_stay_as_they_were(grader):
    one = grader("""
def f(prompts, completions, meta):
    prompts[0].clear(), completions[0].clear(), meta[0].clear()
    return [1.0 for _ in completions]
""")
    given = rollout(prompt=[{"role": "user", "content": "1+1?"}], meta={"a": [1]})
    assert values(one.grade([given]) + one.grade([given])) == [1.0, 1.0]
    assert (given.prompt, given.columns) == ([{"role": "user", "content": "1+1?"}], {"meta": {"a": [1]}})


# What the process sees.


def test_environment_is_empty(grader, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    one = grader("import os\ndef reward(completion): return len(os.environ)")
    assert values(one.grade([rollout()])) == [0.0]


def test_no_descriptor_of_the_client_is_inherited(grader, tmp_path):
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    one = grader(f"""
import os
def identity(fd):
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return None
def reward(completion):
    return sum(identity(fd) == {os.fstat(secret).st_ino} for fd in range(1024))
""")
    try:
        assert values(one.grade([rollout()])) == [0.0]
    finally:
        os.close(secret)


def test_working_folder_is_private_and_goes_with_the_grader(grader):
    source = """
import os
def reward(completion):
    found = os.path.exists("note")
    open("note", "w").close()
    return float(found)
"""
    one = grader(source)
    assert values(one.grade([rollout()] * 2)) == [0.0, 1.0]
    assert values(grader(source).grade([rollout()])) == [0.0]


# Output.


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_huge_output_is_graded_normally_and_kept_at_its_end(grader, stream):
    one = grader(on("loud", f"sys.{stream}.write('x' * 20_000_000 + 'the end\\n')"))
    assert values(one.grade([rollout("loud")])) == [4.0]
    assert values(one.grade([rollout("ok")])) == [2.0]
    assert one.output.text().endswith("the end\n")
    assert len(one.output.text()) == LOG_BYTES
    assert one.output.dropped_bytes >= 19_900_000


def test_writing_to_the_standard_descriptors_does_not_disturb_the_protocol(grader):
    one = grader(on("raw", "os.write(1, b'\\0\\0\\0\\5hello' * 100); os.write(2, b'\\xff' * 1000)"))
    assert values(one.grade([rollout("raw")])) == [3.0]
    assert one.restarts == 0


# Loading.


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ValueError('no data')\ndef reward(completion): ...", "ValueError: no data"),
        ("raise SystemExit\ndef reward(completion): ...", "SystemExit"),
        ("def reward(completion): ...\nreward = 3", "`reward` is int, not a function"),
        ("def reward(completion): ...\ndel reward", "`reward` is NoneType, not a function"),
        ("def reward(completion):", "line 1, column"),
        ("import torch\ndef reward(completion): ...", "`torch` is not there"),
    ],
)
def test_source_that_cannot_be_loaded_is_refused_with_its_error(grader, source, message):
    with pytest.raises(InvalidReward) as caught:
        grader(source)
    assert message in caught.value.message
    assert caught.value.fix


def test_load_error_shows_the_line(grader):
    with pytest.raises(InvalidReward, match=r'File "reward.py", line 2, in <module>\n    1 / 0'):
        grader("x = 1\n1 / 0\ndef reward(completion): ...")


@pytest.mark.parametrize(
    ("statement", "message"),
    [("while True: pass", "no answer within 3 s"), ("import os; os._exit(4)", "exited with code 4")],
)
def test_load_that_hangs_or_crashes_is_a_grader_failure(grader, statement, message):
    with pytest.raises(GraderFailed, match=message):
        grader(f"def reward(completion): ...\n{statement}", load_deadline_s=3.0)


def test_reward_that_cannot_be_loaded_again_is_an_infrastructure_error(grader, write):
    one = grader("import os\ndef reward(completion): os._exit(1)")
    write("raise RuntimeError('once is enough')\ndef reward(completion): ...")
    grades = one.grade([rollout(), rollout()])
    assert [grade.outcome for grade in grades] == [INFRASTRUCTURE_ERROR] * 2
    assert "once is enough" in grades[0].message


def test_form_that_is_named_is_the_form_that_is_called(grader):
    source = "def reward(completion, answer): return completion[-1]['content'] == answer"
    one = grader(source, form=RewardForm.VERIFIERS)
    assert values(one.grade([rollout(prompt=[{"role": "user", "content": "1+1?"}], answer="2")])) == [1.0]


def test_stand_ins_of_other_libraries_are_there(grader):
    one = grader("""
from reward_kit import EvaluateResult, MetricResult, reward_function
@reward_function
def evaluate(messages, ground_truth=None, **kwargs):
    return EvaluateResult(score=messages[-1].content == ground_truth, metrics={"sure": MetricResult(score=0.5)})
""")
    (grade,) = one.grade([rollout(ground_truth="2")])
    assert (grade.value, grade.metrics) == (1.0, {"sure": 0.5})


def test_named_entry_point_is_called(grader):
    one = grader("def reward(completion): return 1.0\ndef other(completion): return 2.0", entry_point="other")
    assert values(one.grade([rollout()])) == [2.0]
