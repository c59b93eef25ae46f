"""One seed for each request, so that a resumed run asks for what the interrupted one had asked for.

vLLM draws unseeded samples from one generator, in the order in which its scheduler took the requests; a process that
begins in the middle of a run stands elsewhere in it. A request with a seed has a generator of its own.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256

from worker.training.seeds import seed_of


class RequestSeeds:
    """Seeds by (seed of the job, step, token ids of the prompt, number of the sample of that prompt in that step).

    A prompt that is asked for again within a step, by another group or in a second round, goes on counting.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step: int | None = None
        self._asked: Counter[bytes] = Counter()

    def draw(self, step: int, prompts: Sequence[Sequence[int]]) -> list[int]:
        """One per prompt, in order; prompts repeat as often as they are sampled."""
        if step != self._step:
            self._step, self._asked = step, Counter()
        return [self._next(step, _digest(prompt)) for prompt in prompts]

    def _next(self, step: int, prompt: bytes) -> int:
        sample = self._asked[prompt]
        self._asked[prompt] += 1
        return seed_of(self._seed, step, prompt, sample)


def _digest(prompt: Sequence[int]) -> bytes:
    return sha256(repr(tuple(prompt)).encode()).digest()
