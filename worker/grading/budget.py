"""How long a grading process goes on with one request."""

import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

_Item = TypeVar("_Item")


def begun_within(items: Sequence[_Item], budget_s: float | None) -> Iterator[_Item]:
    """The items, in order, as long as the next one begins within the budget; always the first one. None: all."""
    if budget_s is None:
        yield from items
        return
    ends_at = time.monotonic() + budget_s
    for number, item in enumerate(items):
        if number and time.monotonic() > ends_at:
            return
        yield item
