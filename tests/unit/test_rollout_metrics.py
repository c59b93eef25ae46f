"""How hard a step pulled at the length of completions."""

import pytest

from core.rows import Row
from worker.training.rewards import Completion, Scored
from worker.training.rollouts import RolloutBatch, length_metrics

ROW = Row(line=1, prompt="p", columns={})
NAME = "signal/reward_length_correlation"


def batch(*groups: list[tuple[float | None, int]]) -> RolloutBatch:
    """Reward and tokens of each completion."""
    lines = [line for group in groups for line in group]
    return RolloutBatch(
        [Completion(ROW, "x", [0] * tokens, is_truncated=False) for _, tokens in lines],
        [Scored({}, reward) for reward, _ in lines],
        len(groups[0]),
    )


def test_a_reward_that_counts_tokens_goes_with_length_entirely():
    assert length_metrics(batch([(0.1, 1), (0.5, 5)], [(2.0, 20), (3.0, 30)])) == {NAME: pytest.approx(1.0)}


def test_long_answers_to_other_prompts_are_not_its_business():
    """Among the answers to each prompt the short ones win, however much longer the other prompt's are."""
    assert length_metrics(batch([(0.0, 12), (0.1, 10)], [(0.9, 102), (1.0, 100)])) == {NAME: pytest.approx(-1.0)}


def test_silent_groups_and_ungraded_completions_pull_at_nothing():
    pulled = length_metrics(batch([(0.0, 10), (1.0, 20)]))
    assert length_metrics(batch([(0.0, 10), (1.0, 20)], [(1.0, 5), (1.0, 500)], [(None, 900), (0.0, 1)])) == pulled


@pytest.mark.parametrize("group", [[(1.0, 5), (1.0, 9)], [(0.0, 7), (1.0, 7)], [(None, 3), (None, 4)]])
def test_where_nothing_differs_there_is_no_number(group: list[tuple[float | None, int]]):
    assert length_metrics(batch(group)) == {}
