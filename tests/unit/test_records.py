"""Which rollouts of a step stay on record."""

import pytest

from bench._chaos.samples import make_rollout
from core.signal import GroupOutcome
from worker.records import on_record, rows_by_outcome
from worker.run_directory import Rollout, RolloutGrade


def rollouts(*groups: list[float | None]) -> list[Rollout]:
    """By reward; None is one that could not be graded."""
    rewards = [reward for group in groups for reward in group]
    failed = RolloutGrade(outcome="user_error", value=None, error="ValueError")
    return [
        make_rollout(str(index)).model_copy(
            update={"index": index, "reward": reward, **({"grades": {"exact": failed}} if reward is None else {})}
        )
        for index, reward in enumerate(rewards)
    ]


def kept(*groups: list[float | None], most: int) -> list[int]:
    return [one.index for one in on_record(rollouts(*groups), group_size=len(groups[0]), most=most)]


def test_all_stay_where_they_fit():
    assert kept([0.0, 0.0], [1.0, None], most=4) == [0, 1, 2, 3]


def test_mixed_groups_come_before_silent_ones_and_stay_whole():
    assert kept([1.0, 1.0], [0.0, 1.0], [0.0, 0.0], [0.2, 0.6], most=5) == [2, 3, 6, 7]


def test_what_could_not_be_graded_always_comes_first():
    assert kept([1.0, None], [0.0, 1.0], [None, 0.0], most=2) == [1, 4]
    assert kept([1.0, None], [0.0, 1.0], [None, 0.0], most=4) == [1, 2, 3, 4]


def test_more_errors_than_fit_are_cut():
    assert kept([None, None], [None, 1.0], most=2) == [0, 1]


def test_long_rollouts_are_bounded_by_their_bytes_and_groups_stay_whole():
    batch = rollouts([1.0, 1.0], [0.0, 1.0], [0.2, 0.6], [None, 1.0])
    long = [one.model_copy(update={"completion": "ü" * 2000}) if one.index == 3 else one for one in batch]

    def kept_of(most_bytes: int) -> list[int]:
        return [one.index for one in on_record(long, group_size=2, most=8, most_bytes=most_bytes)]

    assert kept_of(100_000) == list(range(8))
    assert kept_of(4000) == [0, 1, 4, 5, 6, 7], "two bytes a letter: the longest group does not fit, the others do"
    assert kept_of(500) == [6], "what could not be graded comes first"
    assert kept_of(10) == []


@pytest.mark.parametrize("most", range(9))
def test_never_more_than_asked_for(most: int):
    assert len(kept([0.0, 1.0], [None, 1.0], [1.0, 1.0], [0.5, 0.6], most=most)) <= most


def test_every_group_comes_out_as_its_graded_completions_say():
    batch = [
        one.model_copy(update={"row": 10 + one.index // 2})
        for one in rollouts([1.0, 1.0], [0.0, 1.0], [0.3, 0.3], [None, None], [None, 1.0], [0.1 + 0.2, 0.3])
    ]
    assert rows_by_outcome(batch, group_size=2, pass_threshold=1.0) == {
        GroupOutcome.ALL_RIGHT: [10, 14],
        GroupOutcome.MIXED: [11],
        GroupOutcome.ALL_WRONG: [12, 15],
        GroupOutcome.UNGRADED: [13],
    }
