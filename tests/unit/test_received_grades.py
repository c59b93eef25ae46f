"""What comes out of a grading process is believed only as far as it can be true."""

import json
import math
from typing import Any

import pytest

from worker.grading.grades import GradeOutcome
from worker.grading.protocol import MAX_FRAME_BYTES, answer_cap
from worker.grading.received import read_grade


def test_a_grade_comes_through_as_it_was_sent() -> None:
    sent = {"outcome": "scored", "value": 1, "metrics": {"n": 2.5}, "latency_s": 0.5, "extra": {"a": "b", "c": None}}
    grade = read_grade(sent, 1.0)
    assert (grade.value, grade.metrics, grade.latency_s, grade.extra) == (1.0, {"n": 2.5}, 0.5, {"a": "b", "c": None})


def test_no_time_is_longer_than_what_really_passed() -> None:
    assert read_grade({"outcome": "scored", "value": 1.0, "latency_s": 1e300}, 2.0).latency_s == 2.0


@pytest.mark.parametrize(
    "fields",
    [
        {"value": 1e31},
        {"value": -(10**400)},
        {"value": "1"},
        {"value": True},
        {"value": math.inf},
        {"value": None},
        {"metrics": {"n": 1e308}},
        {"metrics": {"n": "1"}},
        {"metrics": {"n": None}},
        {"metrics": [1.0]},
        {"latency_s": -1.0},
        {"latency_s": math.inf},
        {"latency_s": 10**400},
        {"timed_out": 1},
        {"extra": {"deep": json.loads("[" * 900 + "]" * 900)}},
        {"message": 3},
        {"outcome": "won"},
        {"more": 1},
    ],
)
def test_what_is_not_a_grade_is_a_user_error(fields: dict[str, Any]) -> None:
    grade = read_grade({"outcome": "scored", "value": 1.0, **fields}, 2.0)
    assert (grade.outcome, grade.value) == (GradeOutcome.USER_ERROR, None)
    assert str(grade.message).startswith("the reward's process sent what is not a grade: ")


@pytest.mark.parametrize("other", [None, [], "scored", 1.0])
def test_what_is_no_object_is_a_user_error(other: object) -> None:
    assert read_grade(other, 2.0).outcome is GradeOutcome.USER_ERROR


def test_the_answer_may_grow_with_the_grades_up_to_a_cap() -> None:
    assert answer_cap(1) == 320 * 1024
    assert answer_cap(2) - answer_cap(1) == 256 * 1024
    assert answer_cap(10**6) == MAX_FRAME_BYTES
