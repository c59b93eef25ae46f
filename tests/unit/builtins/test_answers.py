from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from math_verify.errors import TimeoutException
from pydantic import ValidationError

from core.builtin_rewards.answers import Regex
from tests.unit.builtins.grading import grade, rollout, score
from worker.grading.builtins import load, mathematics
from worker.grading.builtins.answers import last_boxed, last_number
from worker.grading.grades import GradeOutcome


@pytest.mark.parametrize(
    ("completion", "answer", "parameters", "wanted"),
    [
        ("Paris", "Paris", {}, 1.0),
        (" Paris\n", "Paris", {}, 1.0),
        (" Paris", "Paris", {"strip": False}, 0.0),
        ("paris", "Paris", {}, 0.0),
        ("paris", "Paris", {"ignore_case": True}, 1.0),
        ("The  Eiffel-Tower!", "eiffel-tower", {"normalize": True}, 1.0),
        ("Lyon", ["Paris", "Lyon"], {}, 1.0),
        ("Nice", ["Paris", "Lyon"], {}, 0.0),
        ("?!", "+", {"normalize": True}, 0.0),  # no words on both sides are not the same
        (" + ", "+", {"normalize": True}, 1.0),
        ("the", "a", {"normalize": True}, 0.0),
        ("42", 42, {}, 1.0),
        ("true", True, {}, 1.0),
        ("<think>Lyon?</think> Paris", "Paris", {"after": "</think>"}, 1.0),
        ("Paris", "Paris", {"after": "</think>"}, 0.0),
        ("Paris", None, {}, None),
        ("Paris", [], {}, None),
    ],
)
def test_exact_match(completion: str, answer: Any, parameters: dict[str, Any], wanted: float | None) -> None:
    assert score("exact_match", rollout(completion, answer=answer), column="answer", **parameters) == wanted


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so x = 42.", 42),
        ("it costs $1,234.50 now", Fraction("1234.5")),
        ("3/4", Fraction(3, 4)),
        ("on 12/25/2020", Fraction(25, 2020)),  # not a date: the last number there is
        ("-7", -7),
        ("\u22127", -7),
        ("10-3", 3),
        ("6.02e23", Fraction(602) * 10**21),
        (".5", Fraction(1, 2)),
        ("v2 of x3", None),
        ("1/0", None),
        ("1e9999", None),
        ("none", None),
        ("5 and 1/0", 5),
    ],
)
def test_the_last_number_is_read_exactly(text: str, number: Fraction | None) -> None:
    assert last_number(text) == number


@given(st.text(alphabet="0123456789.,/eE+-$ \u2212x"))
def test_reading_a_number_never_fails(text: str) -> None:
    last_number(text)


@pytest.mark.parametrize(
    ("completion", "answer", "parameters", "wanted"),
    [
        ("first 7, then 42", 42, {}, 1.0),
        ("42, then 7", 42, {}, 0.0),
        ("72", "He sold 48+24 = 72 clips. #### 72", {}, 1.0),
        (r"\boxed{42} or 7", "42", {"extract": "boxed"}, 1.0),
        (r"42", "42", {"extract": "boxed"}, 0.0),
        ("Answer: 42. Checked 7 times", 42, {"extract": "regex", "pattern": r"Answer: (\S+)"}, 1.0),
        ("1.01", 1, {"tolerance": 0.01}, 1.0),
        ("1.011", 1, {"tolerance": 0.01}, 0.0),
        ("-104", -100, {"relative": 0.05}, 1.0),
        ("106", 100, {"relative": 0.05}, 0.0),
        ("7", [5, 7], {}, 1.0),
        ("nothing", 7, {}, 0.0),
        ("7", None, {}, None),
    ],
)
def test_numeric(completion: str, answer: Any, parameters: dict[str, Any], wanted: float | None) -> None:
    assert score("numeric", rollout(completion, answer=answer), column="answer", **parameters) == wanted


def test_a_reference_without_a_number_is_the_datas_fault_and_no_zero() -> None:
    result = grade("numeric", rollout("7", answer="seven"), column="answer")
    assert (result.outcome, result.message) == (
        GradeOutcome.USER_ERROR,
        "the column `answer` has no number: 'seven'",
    )


def test_a_row_without_the_column_is_the_datas_fault() -> None:
    assert grade("exact_match", rollout("7"), column="answer").message == "the row has no column `answer`"


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{1} and \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1", None),
        ("none", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_box_is_read_with_its_braces(text: str, boxed: str | None) -> None:
    assert last_boxed(text) == boxed


@pytest.mark.parametrize(
    ("completion", "parameters", "wanted"),
    [
        ("say: Answer: 7", {"pattern": r"Answer: \d"}, 1.0),
        ("say: Answer: 7", {"pattern": r"Answer: \d", "full": True}, 0.0),
        ("ANSWER: 7", {"pattern": r"Answer: \d", "flags": "i"}, 1.0),
        ("Answer: 7 Answer: 8", {"pattern": r"Answer: (\d)", "column": "answer"}, 1.0),
        ("Answer: 8 Answer: 7", {"pattern": r"Answer: (\d)", "column": "answer"}, 0.0),
        ("key=8", {"pattern": r"(?P<key>\w+)=(?P<value>\d)", "column": "answer", "group": "value"}, 1.0),
        ("7", {"pattern": r"Answer: (\d)", "column": "answer"}, 0.0),
        ("8", {"pattern": r"\d", "column": "missing"}, None),
    ],
)
def test_regex(completion: str, parameters: dict[str, Any], wanted: float | None) -> None:
    assert score("regex", rollout(completion, answer=8, missing=None), **parameters) == wanted


def test_a_pattern_that_runs_away_is_stopped_and_named() -> None:
    result = grade("regex", rollout("a" * 60 + "b"), pattern=r"(a|aa)+$")
    assert result.outcome is GradeOutcome.USER_ERROR
    assert result.message is not None
    assert result.message.startswith("the pattern needs more than 1 s")


@pytest.mark.parametrize(
    ("completion", "parameters", "wanted"),
    [
        ("a red apple", {"text": "red"}, 1.0),
        ("a red apple", {"text": ["green", "red"]}, 1.0),
        ("a red apple", {"text": ["green", "red"], "require": "all"}, 0.0),
        ("a RED apple", {"column": "words", "require": "all", "ignore_case": True}, 1.0),
        ("a red pear", {"column": "words", "require": "all"}, 0.0),
        ("a red pear", {"column": "none"}, None),
    ],
)
def test_contains(completion: str, parameters: dict[str, Any], wanted: float | None) -> None:
    assert score("contains", rollout(completion, words=["red", "apple"], none=None), **parameters) == wanted


@pytest.mark.parametrize(
    ("completion", "answer", "wanted"),
    [
        ("B", "B", 1.0),
        ("(b)", "B", 0.0),  # a label alone is written as it is
        ("**B**", "B", 1.0),
        ("The answer is (B).", "B", 1.0),
        ("the answer is b", "B", 1.0),
        ("the answer is b, since it is", "B", 1.0),
        ("**Answer: b**", "B", 1.0),
        ("The answer is a hard one to find.", "A", 0.0),
        ("B. The answer is a.b", "A", 0.0),
        ("Answer: A\nNo, wait. Answer: B", "B", 1.0),
        (r"A is wrong, so \boxed{B}", "B", 1.0),
        ("B) because C is false", "B", 1.0),
        ("First I thought.\n\nB.", "B", 1.0),
        ("A dog is B", "A", 0.0),
        ("A B C D", "B", 0.0),
        ("The answer is Bananas", "B", 0.0),
        ("", "B", 0.0),
        ("C", 2, 1.0),
        ("C", None, None),
    ],
)
def test_multiple_choice(completion: str, answer: Any, wanted: float | None) -> None:
    assert score("multiple_choice", rollout(completion, answer=answer), column="answer") == wanted


@pytest.mark.parametrize("words", ["", " ", ["red", ""]])
def test_an_empty_text_to_contain_is_the_datas_fault(words: Any) -> None:
    assert grade("contains", rollout("red", words=words), column="words").outcome is GradeOutcome.USER_ERROR


def test_labels_may_hold_what_patterns_mean_something_by() -> None:
    completion = "The answer is # 2."
    assert score("multiple_choice", rollout(completion, answer="# 2"), column="answer", choices=["# 1", "# 2"]) == 1.0


def test_longer_labels_are_not_cut_short() -> None:
    assert score("multiple_choice", rollout("Answer: 10", answer="10"), column="answer", choices=["1", "10"]) == 1.0


def test_a_reference_that_is_no_choice_is_the_datas_fault() -> None:
    assert grade("multiple_choice", rollout("B", answer="E"), column="answer").outcome is GradeOutcome.USER_ERROR


@pytest.mark.parametrize(
    ("completion", "solution", "parameters", "wanted"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", {}, 1.0),
        ("$1 + x^2$", "x^2+1", {}, 1.0),
        (r"\boxed{(1, 2)}", "(1,2)", {}, 1.0),
        (r"\boxed{1024}", "2^{10}", {}, 1.0),
        ("the answer is 1/3", r"\frac{1}{3}", {}, 1.0),
        ("the answer is 1/3", r"\frac{1}{3}", {"boxed": True}, 0.0),
        ("7", "She has 3 and 4 more. #### 7", {}, 1.0),
        ("8", "7", {}, 0.0),
        ("((((" * 500, "7", {}, 0.0),
        ("no mathematics", "7", {}, 0.0),
        ("7", None, {}, None),
    ],
)
def test_math(completion: str, solution: str | None, parameters: dict[str, Any], wanted: float | None) -> None:
    assert score("math", rollout(completion, solution=solution), column="solution", **parameters) == wanted


def test_mathematics_that_takes_too_long_is_no_zero() -> None:
    result = grade("math", rollout(r"\boxed{9^{9^{9}}}", solution="42"), column="solution")
    assert (result.outcome, result.value, result.timed_out) == (GradeOutcome.INFRASTRUCTURE_ERROR, None, True)
    assert "within 1 s" in (result.message or "")


def test_each_time_limit_of_math_verify_has_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    one = load("math", {"column": "solution"})
    monkeypatch.setattr(mathematics, "verify", out_of_time)
    (slow_to_compare,) = one([rollout("7", solution="7")], 0)
    monkeypatch.setattr(mathematics, "parse", out_of_time)
    (slow_to_read,) = one([rollout("7", solution="7")], 0)
    (slow_reference,) = one([rollout("7", solution="8")], 0)
    found = [(one.outcome, one.timed_out) for one in (slow_to_compare, slow_to_read, slow_reference)]
    assert found == 3 * [(GradeOutcome.INFRASTRUCTURE_ERROR, True)]
    assert "compared with the reference within 1 s" in str(slow_to_compare.message)
    assert "read as mathematics within 1 s" in str(slow_to_read.message)
    assert "could not be read within 5 s" in str(slow_reference.message)


def test_one_equal_solution_counts_however_long_the_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    one = load("math", {"column": "solution"})
    monkeypatch.setattr(mathematics, "verify", lambda gold, answer, **_: gold == answer or out_of_time())
    (result,) = one([rollout(r"\boxed{7}", solution=["8", "7"])], 0)
    assert result.value == 1.0


def test_a_user_pattern_cannot_hold_the_api_up() -> None:
    """Folding the case of so many sets takes more than a second."""
    with pytest.raises(ValidationError, match="more than 16 sets of characters"):
        Regex(builtin="regex", pattern="(?i)" + "[\x01-\uffff]" * 199)
    assert Regex(builtin="regex", pattern="(?i)" + "[a-z]" * 16)
    assert Regex(builtin="regex", pattern="[a-z]" * 100)


def out_of_time(*arguments: Any, **options: Any) -> bool:
    """What math-verify does where it is told to raise."""
    raise TimeoutException


def test_a_solution_without_mathematics_is_the_datas_fault() -> None:
    assert grade("math", rollout("7", solution="It is red."), column="solution").outcome is GradeOutcome.USER_ERROR


@pytest.mark.parametrize("part", ["parse", "verify"])
def test_a_lack_of_memory_for_mathematics_is_no_zero(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*arguments: Any, **options: Any) -> None:
        raise MemoryError

    one = load("math", {"column": "solution"})
    monkeypatch.setattr(mathematics, part, out_of_memory)
    (result,) = one([rollout("$41$", solution="42")], 0)
    assert (result.outcome, result.timed_out) == (GradeOutcome.INFRASTRUCTURE_ERROR, False)
    assert "MemoryError" in str(result.message)


def test_a_reference_that_took_too_long_once_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one = load("math", {"column": "solution"})
    with monkeypatch.context() as patch:
        patch.setattr(mathematics, "parse", out_of_time)
        (late,) = one([rollout("$42$", solution="42")], 0)
    assert (late.outcome, late.timed_out) == (GradeOutcome.INFRASTRUCTURE_ERROR, True)
    assert one([rollout("$42$", solution="42")], 0)[0].value == 1.0
