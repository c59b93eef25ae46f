"""What one generation batch taught: its journal entry, its silent groups, its metrics."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from core.signal import is_silent
from worker.run_directory import Rollout, RolloutsDone
from worker.training.rewards import Completion, Scored, journal_extra, journal_grades


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """The rollouts of one generation, groups standing together."""

    completions: Sequence[Completion]
    scored: Sequence[Scored]
    num_generations: int

    @property
    def group_rewards(self) -> list[list[float]]:
        """The rewards of each group, ungraded rollouts left out."""
        size = self.num_generations
        groups = [self.scored[start : start + size] for start in range(0, len(self.scored), size)]
        return [[score.reward for score in group if score.reward is not None] for group in groups]


@dataclass(frozen=True, slots=True)
class Signal:
    """How many groups can teach nothing (`core.signal.is_silent`). TRL's `frac_reward_zero_std` rounds."""

    groups: int
    """Groups with at least one graded rollout."""
    silent_right: int
    """All rewards equal, and enough to pass the task."""
    silent_wrong: int

    @property
    def silent(self) -> int:
        return self.silent_right + self.silent_wrong

    @property
    def metrics(self) -> dict[str, float]:
        if not self.groups:
            return {}
        return {
            "signal/effective_groups": self.groups - self.silent,
            "signal/silent_share": self.silent / self.groups,
            "signal/silent_all_right": self.silent_right / self.groups,
            "signal/silent_all_wrong": self.silent_wrong / self.groups,
        }


def find_signal(groups: Sequence[Sequence[float]], pass_threshold: float) -> Signal:
    """`groups`: the rewards of each group."""
    graded = [rewards for rewards in groups if rewards]
    silent = [rewards[0] for rewards in graded if is_silent(rewards)]
    right = sum(reward >= pass_threshold for reward in silent)
    return Signal(len(graded), right, len(silent) - right)


def spread_metrics(batch: RolloutBatch) -> dict[str, float]:
    """By term: the standard deviation inside a group, averaged. TRL's `rewards/<term>/std` mixes the prompts."""
    size = batch.num_generations
    groups = [batch.scored[start : start + size] for start in range(0, len(batch.scored), size)]
    metrics = {}
    for term in batch.scored[0].grades if batch.scored else ():
        columns = [[value for score in group if (value := score.value(term)) is not None] for group in groups]
        spreads = [pstdev(values) for values in columns if values]
        if spreads:
            metrics[f"rewards/{term}/std_in_group"] = fmean(spreads)
    return metrics


def journal_entry(
    batch: RolloutBatch, *, step: int, prompts: Sequence[str], advantages: Sequence[float | None]
) -> RolloutsDone:
    """`prompts`: one text per group, as the model read it. An advantage of None: not trained on."""
    lines = zip(batch.completions, batch.scored, advantages, strict=True)
    rollouts = tuple(
        Rollout(
            index=index,
            row=completion.row.line,
            prompt=prompts[index // batch.num_generations],
            completion=completion.text,
            grades=journal_grades(scored),
            reward=scored.reward,
            advantage=advantage,
            completion_tokens=len(completion.token_ids),
            finish_reason="length" if completion.is_truncated else "stop",
            extra=journal_extra(scored),
        )
        for index, (completion, scored, advantage) in enumerate(lines)
    )
    return RolloutsDone(at=time.time(), step=step, rollouts=rollouts)
