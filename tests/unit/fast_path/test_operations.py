"""The model of a pass: how many operations, and by it how a group is best laid out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.fast_path.operations import (
    MASKED_ATTENTION,
    Costs,
    Tree,
    of_padded_rows,
    of_trees,
    split_group,
)

TOKENS_ONLY = Costs(token=1, pair=0, label=0)
QWEN3_1_7B = Costs(token=2.0 * 28 * 50_331_648, pair=4.0 * 16 * 128 * 28, label=2.0 * 2048 * 151_936)
"""As `scoring.costs_of` finds them, without adapters."""


def tokens(prompt: int, completions: list[int], parts: list[list[int]]) -> int:
    return sum(Tree(prompt, tuple(completions[index] for index in part)).tokens for part in parts)


def test_a_tree_has_its_prompt_once_and_one_token_for_each_label() -> None:
    tree = Tree(327, (44,) * 8)
    assert (tree.tokens, tree.labels, tree.is_shared) == (326 + 8 * 44, 8 * 44, True)
    assert Tree(5, (3,)).tokens == 7


def test_operations_of_a_pass_by_hand() -> None:
    costs = Costs(token=10, pair=2, label=100)
    assert of_trees(costs, []) == 0
    assert of_trees(costs, [Tree(3, (2,))]) == 4 * 10 + 10 * 2 + 2 * 100
    shared = [Tree(3, (2, 1)), Tree(2, (1,))]
    assert of_trees(costs, shared) == 2 * (5 * 10 + MASKED_ATTENTION * 25 * 2) + 4 * 100
    assert of_padded_rows(costs, 2, 5, 4, is_masked=True) == of_trees(costs, shared)
    assert of_padded_rows(costs, 1, 4, 2, is_masked=False) == of_trees(costs, [Tree(3, (2,))])


def test_where_attention_is_free_a_group_is_one_tree() -> None:
    assert [sorted(part) for part in split_group(TOKENS_ONLY, 100, [5, 9, 7])] == [[0, 1, 2]]


def test_where_attention_is_all_no_prompt_is_shared() -> None:
    assert sorted(split_group(Costs(token=0, pair=1, label=0), 10, [5, 9, 7])) == [[0], [1], [2]]


def test_no_tree_of_several_is_longer_than_allowed() -> None:
    completions = [50] * 8
    parts = split_group(TOKENS_ONLY, 100, completions, longest=250)
    assert len(parts) == 3
    assert tokens(100, completions, parts) == 3 * 99 + 8 * 50


def test_the_first_shape_of_the_bill_is_one_tree_and_long_answers_are_not() -> None:
    assert len(split_group(QWEN3_1_7B, 327, [44] * 8)) == 1
    assert len(split_group(QWEN3_1_7B, 64, [2048] * 8)) == 8
    assert 1 < len(split_group(QWEN3_1_7B, 2048, [512] * 16)) < 16


@given(
    prompt=st.integers(1, 2048),
    completions=st.lists(st.integers(1, 2048), min_size=1, max_size=16),
    pair=st.floats(0, 1),
)
def test_a_split_takes_every_rollout_once_and_never_costs_more_than_none(
    prompt: int, completions: list[int], pair: float
) -> None:
    costs = Costs(token=1000, pair=pair, label=10)
    parts = split_group(costs, prompt, completions)
    assert sorted(index for part in parts for index in part) == list(range(len(completions)))
    trees = [Tree(prompt, tuple(completions[index] for index in part)) for part in parts]
    alone = sum(of_trees(costs, [Tree(prompt, (length,))]) for length in completions)
    assert sum(of_trees(costs, [tree]) for tree in trees) <= alone * (1 + 1e-9)


@pytest.mark.parametrize("silent_groups", [0, 13, 16])
def test_the_saving_of_the_first_bill(silent_groups: int) -> None:
    """16 groups of 8, 327 and 44 tokens: the forward pass shrinks to about a quarter, times what is not silent."""
    ours = of_trees(QWEN3_1_7B, [Tree(327, (44,) * 8)] * (16 - silent_groups))
    stock = of_padded_rows(QWEN3_1_7B, 128, 371, 128 * 44, is_masked=False)
    assert ours / stock == pytest.approx(0.255 * (16 - silent_groups) / 16, rel=0.1)
