"""What counts as a number, and as text, when it comes from reward code."""

import math
import numbers
from typing import Any

MAX_REWARD = 1e30
"""Weighted sums stay finite in TRL's 32-bit floats; one infinite reward would blank its whole group there."""


class UnusableRewardError(Exception):
    """What a reward returned is not a reward."""


def to_number(value: Any) -> float:
    """A reward as a float: any real number (a boolean is 0 or 1), or a scalar of an array library.

    Raises `UnusableRewardError`, with what is wrong.
    """
    if not isinstance(value, float):
        value = _real(value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number):
        raise UnusableRewardError("returned NaN (return None where the reward does not apply)")
    if abs(number) > MAX_REWARD:
        raise UnusableRewardError(f"returned {number:g}, but rewards are at most {MAX_REWARD:g}")
    return number


def _real(value: Any) -> Any:
    if not isinstance(value, numbers.Real) and getattr(value, "ndim", None) == 0:
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise UnusableRewardError(f"returned {type(value).__name__}, not a number")
    return value


def storable(text: str) -> str:
    """Text that JSON and Postgres can keep: NUL and lone surrogates become visible escapes."""
    return text.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode()
