"""Completions' code against tests, in real sandboxes."""

import errno
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from core.builtin_rewards.catalogue import parse_builtin
from core.builtin_rewards.outside import CodeTests
from tests.polling import wait_until
from worker.grading.builtins import code_tests
from worker.grading.builtins.code_tests import CodeTestsGrader, code_of, read_tests
from worker.grading.builtins.outcomes import UnfitDataError
from worker.grading.grades import Grade, GradeOutcome, Rollout
from worker.grading.process import GradingProcess
from worker.grading.protocol import MAX_FRAME_BYTES

DOUBLE = [{"input": "3\n", "output": "6"}, {"input": "5", "output": "10  \n\n"}]


def grader(**parameters: Any) -> CodeTestsGrader:
    checked = parse_builtin({"builtin": "code_tests", "column": "tests", "timeout_s": 5, **parameters})
    assert isinstance(checked, CodeTests)
    return CodeTestsGrader(checked)


@pytest.fixture(scope="module")
def by_share() -> Iterator[CodeTestsGrader]:
    with grader() as running:
        yield running


def grade(running: CodeTestsGrader, code: str, tests: Any) -> Grade:
    (result,) = running.grade([Rollout("", code, [], {"tests": tests})])
    return result


def test_the_score_is_the_share_of_tests_that_pass_in_the_order_of_the_rollouts(by_share: CodeTestsGrader) -> None:
    asserts = ["assert f(1) == 2", "assert f(2) == 4"]
    codes = ["def f(x): return x + 1", "```python\ndef f(x):\n    return 2 * x\n```", "def f(x) return"]
    grades = by_share.grade([Rollout("", code, [], {"tests": asserts}) for code in codes])
    assert [result.value for result in grades] == [0.5, 1.0, 0.0]


def test_programs_are_judged_by_what_they_print(by_share: CodeTestsGrader) -> None:
    assert grade(by_share, "print(int(input()) * 2)\nexit()", DOUBLE).value == 1.0
    assert grade(by_share, "print(int(input()) + 3)", DOUBLE).value == 0.5


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "raise KeyboardInterrupt",
        "x = bytearray(10**10)",
        "import ctypes; ctypes.string_at(0)",
    ],
)
def test_code_that_ends_before_its_asserts_has_not_passed(by_share: CodeTestsGrader, code: str) -> None:
    assert grade(by_share, code, "assert True").value == 0.0


def test_code_that_never_ends_has_not_passed() -> None:
    with grader(timeout_s=1) as running:
        assert grade(running, "while True: pass", "assert True").value == 0.0


def test_memory_beyond_the_operators_costs_no_code_its_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_REWARD_MEMORY_BYTES", str(384 * 1024**2))
    with grader(memory_mb=1024) as running:
        assert grade(running, "x = 1", "assert x == 1").value == 1.0
        assert grade(running, "x = bytearray(512 * 1024**2)", "assert True").value == 0.0


def test_what_fails_before_the_code_runs_is_not_the_codes_fault(
    by_share: CodeTestsGrader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_tests, "_HARNESS", "def prepare(*given): raise OSError('no room')\nrun_test = prepare")
    result = grade(by_share, "x = 1", "assert x == 1")
    assert result.outcome is GradeOutcome.INFRASTRUCTURE_ERROR
    assert "OSError: no room" in str(result.message)


@pytest.mark.parametrize("asserts", ["assert f(1 == 2", "assert '\0'", "x = " + "-" * 100_000 + "1"])
def test_asserts_that_are_not_python_are_the_datas_fault(by_share: CodeTestsGrader, asserts: str) -> None:
    result = grade(by_share, "def f(x): return x", asserts)
    assert result.outcome is GradeOutcome.USER_ERROR, result
    assert "has asserts that are not Python" in str(result.message)


def test_code_too_large_to_send_is_not_graded(by_share: CodeTestsGrader) -> None:
    result = grade(by_share, "#" * MAX_FRAME_BYTES, "assert True")
    assert result.outcome is GradeOutcome.INFRASTRUCTURE_ERROR
    assert "over the cap" in str(result.message)


def test_batch_is_given_up_after_its_deadline() -> None:
    checked = parse_builtin({"builtin": "code_tests", "column": "tests", "timeout_s": 0.2})
    assert isinstance(checked, CodeTests)
    with CodeTestsGrader(checked, batch_deadline_s=0.1) as running:
        result = grade(running, "while True: pass", ["assert True"] * 3)
    assert (result.outcome, result.timed_out) == (GradeOutcome.INFRASTRUCTURE_ERROR, True)
    assert str(result.message).startswith("not tried")


def test_code_that_hangs_holds_a_batch_no_longer_than_its_end() -> None:
    with grader() as running:
        hangs = Rollout("", "while True: pass", [], {"tests": ["assert True"] * 100})
        (result,) = running.grade([hangs], until=time.monotonic() + 1.0)
    assert (result.outcome, result.timed_out) == (GradeOutcome.INFRASTRUCTURE_ERROR, True)
    assert result.latency_s < 5, "not even its first test had its time"


def test_closing_waits_for_no_test_and_none_begins_after_it() -> None:
    ours = psutil.Process()
    before = set(ours.children(recursive=True))
    with ThreadPoolExecutor(1) as threads:
        running = grader(timeout_s=3)
        grading = threads.submit(grade, running, "while True: pass", ["assert True"] * 100)
        wait_until(lambda: set(ours.children(recursive=True)) - before, what="the first test")
        running.close()
        assert not grading.done()
        assert grading.result().timed_out


def test_one_test_leaves_nothing_to_the_next(by_share: CodeTestsGrader) -> None:
    code = "import pathlib\nmark = pathlib.Path('/tmp/mark')\nseen = mark.exists()\nmark.touch()"
    assert grade(by_share, code, ["assert not seen", "assert not seen"]).value == 1.0


def test_all_may_have_to_pass() -> None:
    with grader(require="all") as running:
        assert grade(running, "def f(x): return x + 1", ["assert f(1) == 2", "assert f(2) == 4"]).value == 0.0
        assert grade(running, "def f(x): return x + 1", ["assert f(1) == 2", "assert f(2) == 3"]).value == 1.0


def test_the_outputs_that_are_expected_are_not_in_the_sandbox(by_share: CodeTestsGrader) -> None:
    code = (
        "import gc\n"
        "word = 'emases nepo'[::-1]\n"
        "texts = [repr(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple)) and o is not globals()]\n"
        "print('found' if any(word in text for text in texts) else 'nothing')\n"
    )
    assert grade(by_share, code, [{"input": "", "output": "open sesame"}]).value == 0.0
    assert grade(by_share, code, [{"input": "", "output": "nothing"}]).value == 1.0


def test_a_row_without_tests_has_no_answer_and_one_with_bad_tests_is_the_datas_fault(by_share: CodeTestsGrader) -> None:
    assert grade(by_share, "x = 1", None).outcome is GradeOutcome.NO_ANSWER
    assert grade(by_share, "x = 1", []).outcome is GradeOutcome.NO_ANSWER
    assert grade(by_share, "x = 1", 7).outcome is GradeOutcome.USER_ERROR


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("assert f(1)\nassert f(2)", 1),
        ('["assert f(1)", "assert f(2)"]', 2),
        ({"inputs": ["1", "2"], "outputs": ["1", "2"]}, 2),
        ('{"inputs": ["1"], "outputs": ["1"]}', 1),
        (DOUBLE, 2),
    ],
)
def test_every_way_to_write_tests_is_read(value: Any, count: int) -> None:
    assert len(read_tests(value, "tests")) == count


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"fn_name": "f", "inputs": [], "outputs": []}, "has `fn_name`"),
        ({"inputs": ["1"], "outputs": []}, "holds neither"),
        ([{"input": 1, "output": "1"}], "is not text"),
        ([1], "neither asserts nor an object"),
        (["assert f(1)"] * 101, "holds 101 tests"),
        ("#" * 2**21, "has a test of more than"),
    ],
)
def test_tests_that_cannot_be_run_are_refused_by_what_is_wrong(value: Any, message: str) -> None:
    with pytest.raises(UnfitDataError, match=message):
        read_tests(value, "tests")


@pytest.mark.parametrize(
    ("completion", "after", "code"),
    [
        ("x = 1", None, "x = 1"),
        ("First:\n```\ny\n```\nthen\n```python\nx = 1\n```\nDone.", None, "x = 1\n"),
        ("```\nbad\n```</think>x = 1", "</think>", "x = 1"),
    ],
)
def test_the_last_fence_is_the_code(completion: str, after: str | None, code: str) -> None:
    assert code_of(completion, after) == code


def test_a_sandbox_that_cannot_be_asked_is_no_failed_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory in the kernel, once the sandbox stands."""

    def unaskable(*_: Any) -> None:
        raise OSError(errno.ENOBUFS, "No buffer space available")

    with grader() as running:
        prepare = running._prepare

        def prepare_and_cut_off(*arguments: Any) -> None:
            prepare(*arguments)
            monkeypatch.setattr(GradingProcess, "_exchange", unaskable)

        monkeypatch.setattr(running, "_prepare", prepare_and_cut_off)
        result = grade(running, "", ["assert True"])
    assert result.outcome is GradeOutcome.INFRASTRUCTURE_ERROR
    assert "No buffer space" in str(result.message)
