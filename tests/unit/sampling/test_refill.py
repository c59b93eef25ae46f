"""Which groups are trained on where silent ones give way to later ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.signal import SILENT, GroupOutcome
from worker.training.sampling.refill import missing, trained_groups

M, R, W, U = GroupOutcome
OUTCOMES = st.lists(st.sampled_from(GroupOutcome), max_size=12)


@pytest.mark.parametrize(
    ("outcomes", "trained", "still_missing"),
    [
        ([M, R, M], [0, 1, 2], 1),
        ([M, W, R, M], [0, 3, 2], 1),
        ([R, W, W, R, M, M, R], [4, 5, 2], 1),
        ([W, U, M, U, M], [4, 1, 2], 0),
        ([M, M, M], [0, 1, 2], 0),
    ],
)
def test_silent_groups_give_way_in_order(outcomes: list[GroupOutcome], trained: list[int], still_missing: int) -> None:
    assert trained_groups(outcomes, 3) == trained
    assert missing(outcomes, 3) == still_missing


@given(st.lists(st.sampled_from(GroupOutcome), min_size=1, max_size=8), OUTCOMES)
def test_the_batch_keeps_its_size_and_what_was_not_silent(first: list[GroupOutcome], later: list[GroupOutcome]) -> None:
    outcomes, size = [*first, *later], len(first)
    trained = trained_groups(outcomes, size)
    assert len(set(trained)) == len(trained) == size
    assert all(place == group for place, group in enumerate(trained) if first[place] not in SILENT)
    assert missing(outcomes, size) == max(0, sum(one in SILENT for one in first) - later.count(M))


@given(st.lists(st.sampled_from(GroupOutcome), min_size=1, max_size=8), st.lists(OUTCOMES, max_size=5))
def test_no_mixed_group_is_lost_if_only_what_is_missing_is_generated(
    first: list[GroupOutcome], rounds: list[list[GroupOutcome]]
):
    outcomes, size = list(first), len(first)
    for further in rounds:
        outcomes += further[: missing(outcomes, size)]
    trained = trained_groups(outcomes, size)
    assert {place for place, outcome in enumerate(outcomes) if outcome is M} <= set(trained)
