"""What the groups of each prompt have shown, and the chance that its next one teaches something.

The state travels with the checkpoints (`worker.training.progress`), so a resumed run draws what it would have drawn.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field


class SeenGroup(NamedTuple):
    """One group of a prompt; rollouts without a reward are in none of its counts."""

    step: int
    graded: int
    passed: int
    is_mixed: bool
    """Whether its rewards differed (`core.signal.is_silent`), passed or not."""


class PromptHistory(BaseModel):
    model_config = ConfigDict(frozen=True)

    groups: int = 0
    """All of them, with at least one reward each."""
    mixed: int = 0
    recent: tuple[SeenGroup, ...] = ()
    """The newest, oldest first."""

    def with_group(self, group: SeenGroup, *, window: int) -> "PromptHistory":
        return PromptHistory(
            groups=self.groups + 1,
            mixed=self.mixed + group.is_mixed,
            recent=(*self.recent, group)[-window:],
        )

    def chance_of_signal(self, num_generations: int) -> float:
        """Expected of the next group: that its rewards differ. Of a prompt never seen too."""
        return _chance(
            passed=sum(group.passed for group in self.recent),
            failed=sum(group.graded - group.passed for group in self.recent),
            mixed=sum(group.is_mixed for group in self.recent),
            groups=len(self.recent),
            size=num_generations,
        )


UNSEEN = PromptHistory()


class PromptHistories(BaseModel):
    """Of the prompts seen so far, by line of the training file."""

    prompts: dict[int, PromptHistory] = Field(default_factory=dict)

    def of(self, line: int) -> PromptHistory:
        return self.prompts.get(line, UNSEEN)

    def note(self, line: int, group: SeenGroup, *, window: int) -> None:
        self.prompts[line] = self.of(line).with_group(group, window=window)

    def __deepcopy__(self, memo: Any = None) -> Self:
        """Histories never change, so a copy of the table is enough: one is made at every step."""
        return self.model_copy(update={"prompts": dict(self.prompts)})


def weight(history: PromptHistory, *, num_generations: int, floor: float) -> float:
    """Between `floor`, where nothing is expected, and 1."""
    return floor + (1 - floor) * history.chance_of_signal(num_generations)


def mean_chance(histories: Mapping[int, PromptHistory], *, prompts: int, num_generations: int) -> float:
    """Over all `prompts`, those that no history speaks of included."""
    seen = sum(history.chance_of_signal(num_generations) for history in histories.values())
    return (seen + (prompts - len(histories)) * UNSEEN.chance_of_signal(num_generations)) / prompts


@lru_cache(maxsize=65_536)
def _chance(*, passed: int, failed: int, mixed: int, groups: int, size: int) -> float:
    """The larger of two estimates, both from a uniform prior.

    By passes: a group whose rollouts do not all pass or all fail has rewards that differ. With the pass rate
    p ~ Beta(1 + passed, 1 + failed) its chance is 1 - E[p^n] - E[(1-p)^n]. By groups: rewards may differ though none
    passes, so a share of mixed groups, Beta(1 + mixed, 1 + silent), counts where it says more.
    """
    by_passes = 1 - _all_alike(1 + passed, 1 + failed, size) - _all_alike(1 + failed, 1 + passed, size)
    return max(by_passes, (1 + mixed) / (2 + groups))


def _all_alike(a: int, b: int, size: int) -> float:
    """E[p^size] for p ~ Beta(a, b)."""
    return prod((a + one) / (a + b + one) for one in range(size))
