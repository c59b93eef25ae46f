"""When a rate began to rise: a cumulative sum of log likelihood ratios for counts (Page, "Continuous inspection
schemes", Biometrika 1954; Bernoulli form: Reynolds and Stoumbos 1999).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

THRESHOLD = 10.0
"""In nats: while the rate stays, the sum passes it once in e^10 = 22,000 steps or less often (Lorden 1971)."""
LEAST_RISE = 0.1
"""Points of rate that matter: a smaller rise is left alone, however certain it is."""
TWICE = 2.0
REFERENCE_STEPS = 10
"""The rate before is what the first of these say, and from then on what all steps before the last few say."""
FORGET_STEPS = 5
"""The last steps before the one that is judged are no part of the rate before: a rise must not raise its own norm."""
LONGEST_REFERENCE = 100
LEAST_RATE = 0.005
"""A rate before is taken to be at least this: else two chance hits of what never happened would be a rise."""
HEALED_STEPS = 10
"""A rise is over when so many steps speak for the rate before more than for the raised one."""
_PRIOR_COUNT = 0.5
"""Jeffreys: a field that was never null has a rate above 0 all the same."""


@dataclass(frozen=True, slots=True)
class Count:
    """At one step, how many of how many. Draws that go together (the rollouts of a prompt) are one: divide both."""

    step: int
    hits: float
    of: float


@dataclass(frozen=True, slots=True)
class Rise:
    began: int
    """The step after which the sum was last 0: the likeliest begin."""
    found: int
    """The step at which it was certain."""
    rate_before: float
    rate_since: float


def standing_rise(counts: Sequence[Count]) -> Rise | None:
    """The first rise that has not gone back since. One that has is left out of what was before the next."""
    rise = first_rise(counts)
    while rise is not None and (healed := _healed_after(counts, rise)) is not None:
        counts = [count for count in counts if not rise.began <= count.step <= healed]
        rise = first_rise(counts)
    return rise


def first_rise(counts: Sequence[Count]) -> Rise | None:
    """The first rise by `LEAST_RISE` or to twice the rate, whichever is more; None while there is none."""
    total, began = 0.0, REFERENCE_STEPS
    hits = list(accumulate((count.hits for count in counts), initial=0.0))
    of = list(accumulate((count.of for count in counts), initial=0.0))
    for place in range(REFERENCE_STEPS, len(counts)):
        first, end = max(0, place - LONGEST_REFERENCE), max(REFERENCE_STEPS, place - FORGET_STEPS)
        before = _smoothed(hits[end] - hits[first], of[end] - of[first])
        total = max(0.0, total + _evidence(counts[place], before))
        if total == 0.0:
            began = place + 1
        if total > THRESHOLD:
            return _rise(counts, began, place)
    return None


def _healed_after(counts: Sequence[Count], rise: Rise) -> int | None:
    """The step after which it is over; None while it stands."""
    since = [count for count in counts if count.step >= rise.began]
    sums = list(accumulate((_evidence(count, rise.rate_before) for count in since), initial=0.0))
    for end in range(HEALED_STEPS, len(since) + 1):
        if since[end - 1].step > rise.found and sums[end] <= sums[end - HEALED_STEPS]:
            return since[end - 1].step
    return None


def _evidence(count: Count, before: float) -> float:
    before = max(LEAST_RATE, before)
    after = min(0.99, max(before + LEAST_RISE, TWICE * before))
    if after <= before:
        return 0.0
    misses = count.of - count.hits
    return count.hits * math.log(after / before) + misses * math.log((1 - after) / (1 - before))


def _rise(counts: Sequence[Count], began: int, found: int) -> Rise:
    return Rise(
        began=counts[began].step,
        found=counts[found].step,
        rate_before=_rate(counts[:began]),
        rate_since=_rate(counts[began : found + 1]),
    )


def _rate(counts: Sequence[Count]) -> float:
    hits, of = sum(count.hits for count in counts), sum(count.of for count in counts)
    return _smoothed(hits, of)


def _smoothed(hits: float, of: float) -> float:
    return (hits + _PRIOR_COUNT) / (of + 2 * _PRIOR_COUNT)
