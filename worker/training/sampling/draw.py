"""Seeded draws by weight that need no state: what is drawn follows from the weights and the key alone."""

import heapq
import random
from collections.abc import Sequence
from math import log1p


def draw(weights: Sequence[float], count: int, *, key: str) -> list[int]:
    """`count` different places (all, where there are fewer) in the order drawn.

    Each next one is drawn among those left with chances proportional to their weights, which must be above 0
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", IPL 2006).
    """
    numbers = random.Random(key)
    # of u^(1/w), the largest first; 1 - u is uniform too, and never 0
    ranks = [log1p(-numbers.random()) / weight for weight in weights]
    return heapq.nlargest(count, range(len(weights)), key=ranks.__getitem__)
