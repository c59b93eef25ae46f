"""Waiting for something real, with a bound."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition: Callable[[], T], *, what: str, timeout_s: float = 60.0) -> T:
    """The first true value of `condition`; fails with `what` when there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"after {timeout_s:.0f} s still not: {what}"
        time.sleep(0.02)
    return value
