"""Draws follow from weights and key alone, and come as often as the weights say."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.sampling.draw import draw

WEIGHTS = st.lists(st.floats(0.01, 1), min_size=1, max_size=30)
DRAWS = 4000


@given(WEIGHTS, st.integers(0, 40), st.text())
def test_places_are_different_and_as_many_as_there_are(weights: list[float], count: int, key: str) -> None:
    drawn = draw(weights, count, key=key)
    assert len(drawn) == len(set(drawn)) == min(count, len(weights))
    assert set(drawn) <= set(range(len(weights)))


@given(WEIGHTS, st.text())
def test_the_same_key_draws_the_same_and_fewer_are_the_first_of_more(weights: list[float], key: str) -> None:
    assert draw(weights, 3, key=key) == draw(weights, 30, key=key)[:3]


def test_another_key_draws_another_order() -> None:
    assert len({tuple(draw([1.0] * 20, 5, key=str(key))) for key in range(50)}) > 45


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0, 1.0], [1.0, 0.5, 0.25, 0.1]])
def test_the_first_comes_by_its_weight(weights: list[float]) -> None:
    counts = Counter(draw(weights, 2, key=f"7 {number}")[0] for number in range(DRAWS))
    for place, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(counts[place] / DRAWS - share) < 4 * (share * (1 - share) / DRAWS) ** 0.5


def test_the_second_comes_by_its_weight_among_those_left() -> None:
    """1/2 of the draws begin with place 0; of those that do not, the weights of the others decide, and so on."""
    weights = [0.5, 0.3, 0.2]
    pairs = Counter(tuple(draw(weights, 2, key=f"7 {number}")) for number in range(DRAWS))
    for (first, second), count in pairs.items():
        share = weights[first] * weights[second] / (1 - weights[first])
        assert abs(count / DRAWS - share) < 4 * (share * (1 - share) / DRAWS) ** 0.5
