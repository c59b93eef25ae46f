"""One seed for each request, so that a resumed run asks for what the interrupted one had asked for.

vLLM draws unseeded samples from one generator, in the order in which its scheduler took the requests; a process that
begins in the middle of a run stands elsewhere in it. A request with a seed has a generator of its own.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256


class RequestSeeds:
    """Seeds by (seed of the job, step, row of the prompt, number of the sample of that row in that step).

    A row that is asked for again within a step, by another group or in a second round, goes on counting.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step: int | None = None
        self._asked: Counter[int] = Counter()

    def draw(self, step: int, rows: Sequence[int]) -> list[int]:
        """One per row, in order; rows repeat as often as they are sampled."""
        if step != self._step:
            self._step, self._asked = step, Counter()
        seeds = []
        for row in rows:
            seeds.append(request_seed(self._seed, step, row, self._asked[row]))
            self._asked[row] += 1
        return seeds


def request_seed(seed: int, step: int, row: int, sample: int) -> int:
    """56 bits: what every generator of torch takes."""
    return int.from_bytes(sha256(repr((seed, step, row, sample)).encode()).digest()[:7])
