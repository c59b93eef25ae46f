"""A request to a grading process ends when its time is over, and what it did not reach is asked for again."""

import time

import pytest

from worker.grading.budget import begun_within
from worker.grading.builtins import registry
from worker.grading.grades import Rollout


@pytest.mark.parametrize(("budget_s", "begun"), [(None, 5), (60.0, 5), (0.0, 1)])
def test_the_first_item_always_begins_and_the_others_in_time(budget_s: float | None, begun: int):
    seen = []
    for item in begun_within(range(5), budget_s):
        seen.append(item)
        time.sleep(0.001)
    assert seen == list(range(begun))


def test_a_built_in_answers_as_far_as_its_time_goes():
    grade = registry.load("contains", {"text": "a"})
    rollouts = [Rollout("", "a", [], {})] * 3
    assert len(grade(rollouts, 0, budget_s=0.0)) == 1
    assert len(grade(rollouts, 0)) == 3
