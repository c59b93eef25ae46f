"""What makes a group of rewards silent: one definition, for the trainer, its forecasts and re-scored rollouts. Pure."""

import math
import struct
from collections.abc import Sequence
from enum import StrEnum


class GroupOutcome(StrEnum):
    MIXED = "mixed"
    """Its rewards differ: the only kind that teaches."""
    ALL_RIGHT = "all_right"
    """All rewards are the same, and enough to pass the task."""
    ALL_WRONG = "all_wrong"
    UNGRADED = "ungraded"


SILENT = frozenset({GroupOutcome.ALL_RIGHT, GroupOutcome.ALL_WRONG})
"""What is known to teach nothing. Of an ungraded group nobody knows."""


def is_silent(rewards: Sequence[float]) -> bool:
    """Whether all rewards of a group are the same number in single precision: then every advantage is 0.

    TRL puts rewards into float32 tensors before it compares them, so 0.1 + 0.2 and 0.3 teach nothing, though they are
    two numbers in Python. One reward alone has nothing to be compared with: such a group is silent too, and so is one
    without any; who must tell that one apart asks `outcome_of`.
    """
    return len({single_precision(reward) for reward in rewards}) <= 1


def outcome_of(rewards: Sequence[float], pass_threshold: float) -> GroupOutcome:
    """Of the rewards of a group, ungraded completions left out."""
    if not rewards:
        return GroupOutcome.UNGRADED
    if not is_silent(rewards):
        return GroupOutcome.MIXED
    return GroupOutcome.ALL_RIGHT if rewards[0] >= pass_threshold else GroupOutcome.ALL_WRONG


def single_precision(reward: float) -> float:
    """The nearest float32, ties to even; infinite beyond their range, as in a tensor (IEEE 754-2019, 4.3.1)."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", reward))[0])
    except OverflowError:
        return math.copysign(math.inf, reward)
