"""How much signal groups of completions carry: which are flat and why, and what to expect of other group sizes. Pure.

A group is silent when its rewards are equal in single precision (`core.signal`): every advantage is 0 then, and so is
the gradient.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, comb, floor, fsum, prod
from statistics import fmean

from core.signal import is_silent, single_precision
from core.signal_report import FlatCause, FlatReason, PassRateBin, SizeEstimate
from core.verdict import wilson

SIZES = (4, 8, 16, 32)
"""Group sizes that people use."""
TENTHS = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion, graded."""

    text: str
    tokens: int
    is_truncated: bool
    reward: float | None


@dataclass(frozen=True, slots=True)
class Group:
    row: int
    """Line of the training file."""
    prompt_tokens: int
    samples: tuple[Sample, ...]

    @property
    def rewards(self) -> list[float]:
        """Those that there are."""
        return [sample.reward for sample in self.samples if sample.reward is not None]


def flat_reason(rewards: Sequence[float], pass_threshold: float) -> FlatReason | None:
    """Why a group with these rewards is flat; None when it is not."""
    if not rewards:
        return FlatReason.UNGRADED
    if len(rewards) == 1:
        return FlatReason.SINGLE_GRADED
    if not is_silent(rewards):
        return None
    if rewards[0] >= pass_threshold:
        return FlatReason.ALL_PASSED
    return FlatReason.ALL_EQUAL_PARTIAL if rewards[0] > 0 else FlatReason.ALL_FAILED


def flat_causes(samples: Sequence[Sample]) -> tuple[FlatCause, ...]:
    """What the completions of a flat group have in common."""
    causes = []
    if len({sample.text for sample in samples}) == 1:
        causes.append(FlatCause.IDENTICAL_COMPLETIONS)
    if all(sample.is_truncated for sample in samples):
        causes.append(FlatCause.ALL_TRUNCATED)
    return tuple(causes)


def flat_probability(rewards: Sequence[float], size: int) -> float:
    """The chance that a group of `size` rewards is flat, of a prompt that has given `rewards`.

    Up to their number n: the share of the subsets of this size that are flat, an unbiased estimate whatever values
    rewards have. Beyond it: 0 for a mixed group; for a flat one the chance that the other size - n rewards equal it
    too, under Jeffreys' prior Beta(1/2, 1/2) on the rate: the product of (n + 1/2 + i) / (n + 1 + i). So a larger
    size never has a larger chance.
    """
    counts, n = Counter(map(single_precision, rewards)), len(rewards)
    if size <= n:
        return sum(comb(count, size) for count in counts.values()) / comb(n, size)
    if len(counts) > 1:
        return 0.0
    return prod((n + 0.5 + more) / (n + 1 + more) for more in range(size - n))


def silent_chances(groups: Sequence[Group], size: int) -> list[float]:
    """Of each group with a reward. Where some completions were not graded, as many of `size` would not be either."""
    return [
        flat_probability(rewards, max(1, size * len(rewards) // len(group.samples)))
        for group in groups
        if (rewards := group.rewards)
    ]


def estimate_sizes(groups: Sequence[Group], *, samples: int, num_generations: int) -> tuple[SizeEstimate, ...]:
    """One estimate for each usual size, the probed one and the job's; none when nothing was graded."""
    if not any(group.rewards for group in groups):
        return ()
    return tuple(_estimate(groups, size, samples) for size in sorted({*SIZES, samples, num_generations}))


def _estimate(groups: Sequence[Group], size: int, samples: int) -> SizeEstimate:
    chances = silent_chances(groups, size)
    low, high = mean_ci95(chances)
    if size > samples:
        _, high = mean_ci95(silent_chances(groups, samples))
    share = fmean(chances)
    return SizeEstimate(
        num_generations=size,
        silent_share=share,
        silent_share_ci95=(low, high),
        estimator="subsets" if size <= samples else "extension",
        completions_per_signal=size / (1 - share) if share < 1 else None,
    )


def mean_ci95(chances: Sequence[float]) -> tuple[float, float]:
    """Of the mean of chances, one for each prompt, at least one: of certain ones (0 and 1) Wilson's score interval.

    The others are given that of the count they add up to, rounded outwards. It is not too narrow, since what lies
    within 0 and 1 with mean m varies by m (1 - m) at most (Bhatia and Davis 2000), and where all chances are alike it
    does not shrink to a point, as a bootstrap's would.
    """
    count, n = fsum(chances), len(chances)
    lower, upper = wilson(floor(count), n), wilson(min(n, ceil(count)), n)
    assert lower is not None
    assert upper is not None
    return lower[0], upper[1]


def pass_rate_histogram(passed_of: Sequence[tuple[int, int]]) -> tuple[PassRateBin, ...]:
    """Twelve bins: never, the tenths between, always. `passed_of`: passed and graded completions of each prompt."""
    counts = Counter(_bin(passed, graded) for passed, graded in passed_of)
    edges = [(0.0, 0.0), *((low / TENTHS, (low + 1) / TENTHS) for low in range(TENTHS)), (1.0, 1.0)]
    return tuple(PassRateBin(low=low, high=high, prompts=counts[place]) for place, (low, high) in enumerate(edges))


def _bin(passed: int, graded: int) -> int:
    """In whole numbers: a rate on the edge of two tenths belongs to the lower one."""
    if passed == graded:
        return TENTHS + 1
    return 0 if passed == 0 else 1 + (TENTHS * passed - 1) // graded
