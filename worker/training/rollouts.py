"""What one generation batch taught: its journal entry, its silent groups, its metrics."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import correlation, fmean, pstdev

from core.signal import GroupOutcome, is_silent, outcome_of
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
        return [[reward for reward, _ in group] for group in self.graded_groups]

    @property
    def graded_groups(self) -> list[list[tuple[float, int]]]:
        """Reward and tokens of each group's graded rollouts."""
        lines = [
            (score.reward, len(completion.token_ids))
            for score, completion in zip(self.scored, self.completions, strict=True)
        ]
        size = self.num_generations
        groups = [lines[start : start + size] for start in range(0, len(lines), size)]
        return [[(reward, tokens) for reward, tokens in group if reward is not None] for group in groups]


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
    outcomes = Counter(outcome_of(rewards, pass_threshold) for rewards in groups)
    right, wrong = outcomes[GroupOutcome.ALL_RIGHT], outcomes[GroupOutcome.ALL_WRONG]
    return Signal(outcomes[GroupOutcome.MIXED] + right + wrong, right, wrong)


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


def length_metrics(batch: RolloutBatch) -> dict[str, float]:
    """`signal/reward_length_correlation`: Pearson's r of reward and tokens inside the groups, pooled over them.

    Only what differs inside a group moves the policy, so this is how hard the step pulled at the length. Absent where
    nothing differs.
    """
    rewards: list[float] = []
    lengths: list[float] = []
    for group in batch.graded_groups:
        if not is_silent([reward for reward, _ in group]):
            rewards += _around_mean([reward for reward, _ in group])
            lengths += _around_mean([tokens for _, tokens in group])
    return {"signal/reward_length_correlation": correlation(rewards, lengths)} if any(lengths) else {}


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


def _around_mean(values: Sequence[float]) -> list[float]:
    return [value - fmean(values) for value in values]
