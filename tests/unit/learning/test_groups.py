"""Which prompts could teach, and when."""

from itertools import pairwise

from core.learning.groups import WINDOWS, StepGroups, prompts_of, windows_of
from core.signal import GroupOutcome
from core.taught import MOST_ROWS

MIXED, RIGHT, WRONG, UNGRADED = GroupOutcome


def step(number: int, **rows: list[int]) -> StepGroups:
    return StepGroups(number, {GroupOutcome(outcome): lines for outcome, lines in rows.items()})


def test_a_prompt_is_what_all_its_groups_were():
    found = prompts_of(
        [
            step(1, mixed=[1], all_right=[2, 4], all_wrong=[3], ungraded=[5]),
            step(2, all_right=[1, 2], all_wrong=[3, 4]),
        ]
    )
    assert found.seen == 5
    assert found.ever_mixed.rows == (1,)
    assert found.always_right.rows == (2,)
    assert found.always_wrong.rows == (3,)
    assert found.never_mixed.rows == (4,)


def test_what_could_not_be_graded_once_says_nothing_of_the_other_times():
    found = prompts_of([step(1, ungraded=[2]), step(2, all_right=[2])])
    assert found.always_right.rows == (2,)


def test_all_are_counted_and_only_so_many_listed():
    found = prompts_of([step(1, mixed=list(range(MOST_ROWS + 5)))])
    assert (found.ever_mixed.prompts, len(found.ever_mixed.rows)) == (MOST_ROWS + 5, MOST_ROWS)


def test_windows_cover_every_step_once_in_order():
    steps = [step(number, mixed=[number % 7], all_right=[100]) for number in range(1, 48)]
    windows = windows_of(steps)
    assert len(windows) == WINDOWS
    assert (windows[0].from_step, windows[-1].to_step) == (1, 47)
    assert all(one.to_step + 1 == two.from_step for one, two in pairwise(windows))
    assert sum(one.groups for one in windows) == 94
    assert {one.to_step - one.from_step for one in windows} == {3, 4}


def test_a_window_counts_groups_and_prompts():
    (window,) = windows_of([step(9, mixed=[1, 1, 2], all_right=[3], all_wrong=[4, 4], ungraded=[5])])
    assert (window.groups, window.mixed, window.all_right, window.all_wrong) == (6, 3, 1, 2)
    assert (window.prompts, window.mixed_prompts) == (5, 2)


def test_few_steps_are_a_window_each_and_none_is_none():
    assert [one.from_step for one in windows_of([step(1, mixed=[1]), step(2, mixed=[1])])] == [1, 2]
    assert windows_of([]) == ()
    assert prompts_of([]).seen == 0
