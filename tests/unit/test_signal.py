"""One definition of a silent group, and that it is numpy's and the trainer's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.signal import SILENT, GroupOutcome, is_silent, outcome_of, single_precision


@pytest.mark.parametrize(
    ("rewards", "silent"),
    [
        ([], True),
        ([0.5], True),
        ([0.9] * 8, True),
        ([0.1 + 0.2, 0.3], True),
        ([0.0, -0.0], True),
        ([1e300, 1e200], True),
        ([1e300, -1e300], False),
        ([0.9, 0.9 + 1e-6], False),
        ([0, 1], False),
    ],
)
def test_a_group_is_silent_when_its_rewards_are_the_same_in_32_bits(rewards: list[float], silent: bool):
    assert is_silent(rewards) is silent


@pytest.mark.parametrize(
    ("rewards", "outcome"),
    [
        ([], GroupOutcome.UNGRADED),
        ([0.5], GroupOutcome.ALL_RIGHT),
        ([0.3, 0.1 + 0.2], GroupOutcome.ALL_WRONG),
        ([0.3, 0.4], GroupOutcome.MIXED),
    ],
)
def test_a_group_is_mixed_silent_or_ungraded(rewards: list[float], outcome: GroupOutcome):
    assert outcome_of(rewards, 0.5) is outcome
    assert (outcome in SILENT) == (is_silent(rewards) and bool(rewards))


@given(st.floats(allow_nan=False))
def test_single_precision_is_numpys(reward: float):
    with np.errstate(over="ignore", under="ignore"):
        assert single_precision(reward) == float(np.float32(reward))
