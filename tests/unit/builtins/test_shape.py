from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment

from tests.unit.builtins.grading import rollout, score


@pytest.mark.parametrize(
    ("tokens", "parameters", "wanted"),
    [
        (10, {"max": 10}, 1.0),
        (15, {"max": 10}, 0.5),
        (25, {"max": 10}, 0.0),
        (11, {"max": 10, "shape": "step"}, 0.0),
        (5, {"min": 10}, 0.5),
        (7, {"min": 5, "max": 10}, 1.0),
        (10, {"target": 10}, 1.0),
        (8, {"target": 10}, 0.8),
        (12, {"target": 10}, 0.8),
    ],
)
def test_length(tokens: int, parameters: dict[str, Any], wanted: float) -> None:
    assert score("length", rollout(ids=range(tokens)), **parameters) == pytest.approx(wanted)


def test_length_in_characters_can_leave_the_thinking_out() -> None:
    one = rollout("<think>long and winding</think>short")
    assert score("length", one, max=5, unit="chars", shape="step", after="</think>") == 1.0
    assert score("length", one, max=5, unit="chars", shape="step") == 0.0


@given(st.integers(0, 40), st.integers(1, 30), st.integers(0, 30))
def test_overlong_is_trls(tokens: int, longest: int, buffer: int) -> None:
    buffer = min(buffer, longest)
    (wanted,) = get_soft_overlong_punishment(longest, buffer)([[1] * tokens])
    assert score("overlong", rollout(ids=[1] * tokens), max=longest, buffer=buffer) == wanted


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 4), st.floats(-2, 0))
def test_repetition_is_trls(ids: list[int], ngram: int, penalty: float) -> None:
    (wanted,) = get_repetition_penalty_reward(ngram, penalty)([ids])
    assert score("repetition", rollout(ids=ids), ngram=ngram, max_penalty=penalty) == wanted
