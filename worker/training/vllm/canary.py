"""Whether the sampler serves the policy that is trained, asked after every sync.

The same few texts are scored by both. Two questions are put to the figures:

1. Are sampler and trainer far apart? (`LIMITS`, by what they compute in.) Garbage, a wrong model, half a sync.
2. Is the sampler nearer to an older policy than to this one? An engine that kept the base or an old adapter is, however
   little was learned. For texts of n tokens let d be the difference of the old and the present policy's
   log-probabilities, and s the deviation of the sampler's from the old policy's. Were the present policy served, the
   excess (|sampled - now|^2 - |sampled - old|^2) / (2 s |d|) would be about -|d| / 2s with a standard deviation of 1,
   whatever the precision; `CERTAIN` is so far above that rounding does not reach it. While nothing is learned d is 0,
   and there is no verdict: an adapter that is still zero is the base. What one small step moves is below rounding, and
   found when several are missing.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from worker.training.failures import StaleSampler

Texts = list[list[int]]
"""Token ids."""
Scorer = Callable[[Texts], torch.Tensor]
"""Log-probability of every token but each text's first, at temperature 1, one text after the other: (tokens,)."""

LIMITS = {torch.float32: 0.02, torch.bfloat16: 0.25}
"""Nats per token, mean. In fp32 kernels differ by 0.00001. The rest is expected from the arithmetic, not measured on a
GPU: 0.001 with TF32. bfloat16 has 8 bits: a logit of 20 is off by up to 0.06, an unlikely token's log-probability by as
much, and layers add theirs; 0.02 to 0.06 in the mean. Another model on the same text: a nat or more."""
CERTAIN = 8.0
"""Standard errors. The policies on record are up to 32, and errors of neighbouring tokens are not independent."""
LEAST_MOVE = {torch.float32: 1e-4, torch.bfloat16: 0.01}
"""Nats, root mean square: a policy that moved less than rounding from an older one is not told apart from it."""
TEXTS = 4
PROMPT_TOKENS = 96
COMPLETION_TOKENS = 32
REMEMBERED = 32


@dataclass(frozen=True, slots=True)
class Known:
    """A policy that was, as it scored the texts."""

    name: str
    logps: torch.Tensor


@dataclass(frozen=True, slots=True)
class Reading:
    gap: float
    """Mean absolute difference of sampler and trainer, nats per token."""
    excess: float
    """Of the older policy that the sampler leans to most, in standard errors; 0 without one."""
    stale: str | None = None
    """The older policy that it serves, where that is certain."""

    @property
    def metrics(self) -> dict[str, float]:
        return {"canary/logp_gap": self.gap, "canary/stale_excess": self.excess}


def read(sampled: torch.Tensor, trained: torch.Tensor, older: Sequence[Known], dtype: torch.dtype) -> Reading:
    """All of shape (tokens,), in float64."""
    gap = (sampled - trained).abs().mean().item()
    excesses = {one.name: _excess(sampled, trained, one.logps, LEAST_MOVE[dtype]) for one in older}
    if not excesses:
        return Reading(gap, 0.0)
    nearest = max(excesses, key=lambda name: excesses[name])
    worst = excesses[nearest]
    return Reading(gap, min(worst, 1e6), nearest if worst > CERTAIN else None)


def require_present(reading: Reading, dtype: torch.dtype, *, step: int) -> None:
    """Raises `StaleSampler`, before one token is sampled from it."""
    if reading.stale is not None:
        raise StaleSampler(
            f"After the sync before step {step + 1} the sampler serves {reading.stale} and not the policy that is "
            f"trained: its log-probabilities are nearer to that by {reading.excess:.0f} standard errors."
        )
    if not reading.gap <= LIMITS[dtype]:
        raise StaleSampler(
            f"After the sync before step {step + 1} sampler and trainer differ by {reading.gap:.3g} nats per token on "
            f"the same texts; rounding explains {LIMITS[dtype]:g} at most."
        )


def _excess(sampled: torch.Tensor, now: torch.Tensor, old: torch.Tensor, least: float) -> float:
    tokens = len(sampled)
    moved = (now - old).norm().item()
    if moved < least * math.sqrt(tokens):
        return 0.0
    to_now, to_old = (sampled - now).square().sum().item(), (sampled - old).square().sum().item()
    deviation = math.sqrt(to_old / tokens)
    if deviation == 0:
        return math.inf
    return float((to_now - to_old) / (2 * deviation * moved))


class Canary:
    """Knows the texts, and how the policies of this process scored them."""

    def __init__(self, prompts: Sequence[Sequence[int]], dtype: torch.dtype, *, score_base: Scorer | None) -> None:
        """`prompts`: token ids. `score_base` scores without the adapter; None where every weight is trained."""
        distinct = list(dict.fromkeys(tuple(prompt[-PROMPT_TOKENS:]) for prompt in prompts if prompt))
        self._prompts = [list(prompt) for prompt in distinct[:TEXTS]]
        self._texts: Texts = []
        self._dtype = dtype
        self._score_base = score_base
        self._base: list[Known] = []
        self._older: deque[Known] = deque(maxlen=REMEMBERED)

    def check(
        self, *, sampler: Scorer, trainer: Scorer, complete: Callable[[Texts, int], Texts], step: int
    ) -> dict[str, float]:
        """The metrics of this sync, as often as the step asks for one. Raises `StaleSampler`.

        `complete` writes the texts' ends, once: greedily, which draws no random number.
        """
        if not self._texts:
            ends = complete(self._prompts, COMPLETION_TOKENS)
            self._texts = [prompt + end for prompt, end in zip(self._prompts, ends, strict=True)]
            if self._score_base is not None:
                self._base = [Known("the base model", self._score_base(self._texts))]
        trained, sampled = trainer(self._texts), sampler(self._texts)
        now = Known(f"the policy after step {step}", trained)
        older = [one for one in self._older if one.name != now.name]
        reading = read(sampled, trained, [*self._base, *older], self._dtype)
        require_present(reading, self._dtype, step=step)
        self._older = deque([*older, now], maxlen=REMEMBERED)
        return reading.metrics
