"""What of a step's rollouts is kept: all where they fit, else those that say most; and how each group came out."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from core.signal import GroupOutcome, outcome_of
from worker.run_directory import Rollout

MOST_BYTES = 4 * 1024 * 1024
"""Of a step's rollouts on record, as JSON: 128 of 32 KB."""


def on_record(
    rollouts: Sequence[Rollout], *, group_size: int, most: int, most_bytes: int = MOST_BYTES
) -> list[Rollout]:
    """At most `most`, of at most `most_bytes` together, in order. Those that could not be graded come first; then whole
    groups, the mixed ones before the silent: side by side, the completions of a mixed group show what the reward pays
    for.
    """
    sizes = {rollout.index: len(rollout.model_dump_json().encode()) for rollout in rollouts}
    groups = [rollouts[start : start + group_size] for start in range(0, len(rollouts), group_size)]
    errors = [[rollout] for rollout in rollouts if _has_error(rollout)]
    kept: set[int] = set()
    room = most_bytes
    for wanted in [*errors, *sorted(groups, key=_spread, reverse=True)]:
        more = {rollout.index for rollout in wanted} - kept
        size = sum(sizes[index] for index in more)
        if len(kept) + len(more) <= most and size <= room:
            kept |= more
            room -= size
    return [rollout for rollout in rollouts if rollout.index in kept]


def rows_by_outcome(
    rollouts: Sequence[Rollout], *, group_size: int, pass_threshold: float
) -> Mapping[GroupOutcome, list[int]]:
    """Lines of the training file: of every group, whatever is kept of its rollouts."""
    rows: defaultdict[GroupOutcome, list[int]] = defaultdict(list)
    for start in range(0, len(rollouts), group_size):
        group = rollouts[start : start + group_size]
        rewards = [rollout.reward for rollout in group if rollout.reward is not None]
        rows[outcome_of(rewards, pass_threshold)].append(group[0].row)
    return rows


def _has_error(rollout: Rollout) -> bool:
    return any(grade.error is not None for grade in rollout.grades.values())


def _spread(group: Sequence[Rollout]) -> float:
    rewards = [rollout.reward for rollout in group if rollout.reward is not None]
    return max(rewards) - min(rewards) if rewards else 0.0
