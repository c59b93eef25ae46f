"""The chance that a prompt's next group teaches something: against integrals worked out by hand, and its laws."""

import copy
import json
from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.sampling.histories import PromptHistories, PromptHistory, SeenGroup, mean_chance, weight

WINDOW = 4
SIZES = st.integers(2, 64)


def seen(passed: int, graded: int, *, is_mixed: bool | None = None) -> SeenGroup:
    return SeenGroup(1, graded, passed, 0 < passed < graded if is_mixed is None else is_mixed)


def history(*groups: SeenGroup, window: int = WINDOW) -> PromptHistory:
    found = PromptHistory()
    for group in groups:
        found = found.with_group(group, window=window)
    return found


GROUPS = st.lists(
    st.integers(1, 8).flatmap(
        lambda graded: st.tuples(st.integers(0, graded), st.booleans()).map(
            lambda drawn: seen(drawn[0], graded, is_mixed=drawn[1] or 0 < drawn[0] < graded)
        )
    ),
    max_size=9,
)


def integral(a: int, b: int, size: int) -> Fraction:
    """E[p^size] of Beta(a, b), whole parameters: B(a + size, b) / B(a, b)."""

    def beta(x: int, y: int) -> Fraction:
        return Fraction(1, comb(x + y - 2, x - 1) * (x + y - 1))

    return beta(a + size, b) / beta(a, b)


@pytest.mark.parametrize(
    ("groups", "size", "chance"),
    [
        ([], 2, 1 / 2),  # the prior of the groups; by passes 1 - 2/3
        ([], 8, 7 / 9),  # 1 - 2/9
        ([seen(0, 8)], 8, 1 - 9 / 17 - 1 / comb(17, 8)),
        ([seen(8, 8)], 8, 1 - 9 / 17 - 1 / comb(17, 8)),
        ([seen(4, 8)], 8, float(1 - 2 * integral(5, 5, 8))),
        ([seen(0, 8, is_mixed=True)] * 4, 8, 5 / 6),  # nothing passes, and yet they differ
    ],
)
def test_the_chance_is_the_larger_of_two_estimates(groups: list[SeenGroup], size: int, chance: float) -> None:
    assert history(*groups).chance_of_signal(size) == pytest.approx(chance, rel=1e-12)


@given(GROUPS, SIZES, st.floats(0.01, 1))
def test_weights_lie_between_the_floor_and_1(groups: list[SeenGroup], size: int, floor: float) -> None:
    assert floor <= weight(history(*groups), num_generations=size, floor=floor) <= 1 + 1e-12


@given(st.integers(0, 8), SIZES)
def test_a_silent_group_more_never_raises_the_chance(times: int, size: int) -> None:
    before, after = history(*[seen(8, 8)] * times, window=20), history(*[seen(8, 8)] * (times + 1), window=20)
    assert after.chance_of_signal(size) < before.chance_of_signal(size)


@given(GROUPS)
def test_only_the_newest_groups_weigh_and_all_are_counted(groups: list[SeenGroup]) -> None:
    whole, newest = history(*groups), history(*groups[-WINDOW:])
    assert whole.recent == newest.recent
    assert whole.chance_of_signal(8) == newest.chance_of_signal(8)
    assert (whole.groups, whole.mixed) == (len(groups), sum(group.is_mixed for group in groups))


@given(st.lists(st.tuples(st.integers(1, 5), GROUPS), max_size=5))
def test_they_survive_a_checkpoint_and_a_copy_does_not_move_with_the_run(lines: list[tuple[int, list[SeenGroup]]]):
    histories = PromptHistories()
    for line, groups in lines:
        for group in groups:
            histories.note(line, group, window=WINDOW)
    kept = copy.deepcopy(histories)
    assert PromptHistories.model_validate(json.loads(histories.model_dump_json())) == kept
    histories.note(1, seen(3, 8), window=WINDOW)
    assert kept.of(1).groups == histories.of(1).groups - 1


def test_the_mean_chance_counts_prompts_that_were_never_seen() -> None:
    silent = history(seen(0, 8))
    expected = (silent.chance_of_signal(8) + 3 * PromptHistory().chance_of_signal(8)) / 4
    assert mean_chance({5: silent}, prompts=4, num_generations=8) == pytest.approx(expected)
