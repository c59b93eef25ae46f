"""Races: several threads that start the same thing at the same moment."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")


def race(contenders: int, run: Callable[[int], T]) -> list[T]:
    """What `run(number)` returned for each contender; the first error is raised."""
    start = Barrier(contenders)

    def contend(number: int) -> T:
        start.wait(timeout=30)
        return run(number)

    with ThreadPoolExecutor(contenders) as pool:
        return list(pool.map(contend, range(contenders)))
