"""Which groups are trained on where silent ones give way to later ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.sampling.refill import Kind, kind_of, missing, trained_groups

M, S, U = Kind.MIXED, Kind.SILENT, Kind.UNGRADED
KINDS = st.lists(st.sampled_from(Kind), max_size=12)


@pytest.mark.parametrize(
    ("rewards", "kind"),
    [
        ([], U),
        ([0.5], S),
        ([0.3, 0.1 + 0.2], S),  # one number in single precision
        ([0.3, 0.4], M),
    ],
)
def test_a_group_is_silent_mixed_or_ungraded(rewards: list[float], kind: Kind) -> None:
    assert kind_of(rewards) is kind


@pytest.mark.parametrize(
    ("kinds", "trained", "still_missing"),
    [
        ([M, S, M], [0, 1, 2], 1),
        ([M, S, S, M], [0, 3, 2], 1),
        ([S, S, S, S, M, M, S], [4, 5, 2], 1),
        ([S, U, M, U, M], [4, 1, 2], 0),
        ([M, M, M], [0, 1, 2], 0),
    ],
)
def test_silent_groups_give_way_in_order(kinds: list[Kind], trained: list[int], still_missing: int) -> None:
    assert trained_groups(kinds, 3) == trained
    assert missing(kinds, 3) == still_missing


@given(st.lists(st.sampled_from(Kind), min_size=1, max_size=8), KINDS)
def test_the_batch_keeps_its_size_and_what_was_not_silent(first: list[Kind], later: list[Kind]) -> None:
    kinds, size = [*first, *later], len(first)
    trained = trained_groups(kinds, size)
    assert len(set(trained)) == len(trained) == size
    assert all(place == group for place, group in enumerate(trained) if first[place] is not S)
    assert missing(kinds, size) == max(0, first.count(S) - later.count(M))


@given(st.lists(st.sampled_from(Kind), min_size=1, max_size=8), st.lists(KINDS, max_size=5))
def test_no_mixed_group_is_lost_if_only_what_is_missing_is_generated(first: list[Kind], rounds: list[list[Kind]]):
    kinds, size = list(first), len(first)
    for further in rounds:
        kinds += further[: missing(kinds, size)]
    trained = trained_groups(kinds, size)
    assert {place for place, kind in enumerate(kinds) if kind is M} <= set(trained)
