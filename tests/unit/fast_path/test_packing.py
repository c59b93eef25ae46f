"""Micro-batches: every rollout once, no more memory than TRL's, and weights that add up to TRL's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.training.fast_path.operations import Costs, of_trees
from worker.training.fast_path.packing import RolloutSize, Share, arrange, pack, trees_of, weight

COSTS = Costs(token=1000, pair=1, label=100)


@st.composite
def generations(draw: st.DrawFn) -> tuple[list[RolloutSize], int, int]:
    """Rollouts of a generation batch, rollouts in a pass, passes."""
    size, passes = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    count = draw(st.integers(0, size * passes))
    prompts = draw(st.lists(st.integers(1, 300), min_size=4, max_size=4))
    sizes = [
        RolloutSize(number, prompts[number], draw(st.integers(1, 200)))
        for number in (draw(st.integers(0, 3)) for _ in range(count))
    ]
    return sizes, size, passes


@given(generations())
def test_packed_rollouts_are_all_there_and_fit(generation: tuple[list[RolloutSize], int, int]) -> None:
    sizes, size, passes = generation
    width = max((one.prompt_tokens for one in sizes), default=1) + max(
        (one.completion_tokens for one in sizes), default=1
    )
    packed = pack(COSTS, sizes, passes=passes, rollouts_per_pass=size, tokens_per_pass=size * width)
    assert len(packed) == passes
    assert sorted(row for rows in packed for row in rows) == list(range(len(sizes)))
    for rows in packed:
        kept = [sizes[row] for row in rows]
        trees = trees_of(kept, arrange(COSTS, kept, size * width))
        assert len(trees) * max((tree.tokens for tree in trees), default=0) <= size * width


def test_what_is_left_stands_in_the_first_passes() -> None:
    sizes = [RolloutSize(0, 100, 20)] * 4
    assert pack(COSTS, sizes, passes=4, rollouts_per_pass=4, tokens_per_pass=480) == [[0, 1, 2, 3], [], [], []]


def test_a_pass_of_few_rollouts_holds_a_whole_group_that_shares_its_prompt() -> None:
    sizes = [RolloutSize(0, 300, 20)] * 8
    assert [len(rows) for rows in pack(COSTS, sizes, passes=4, rollouts_per_pass=2, tokens_per_pass=640)] == [
        8,
        0,
        0,
        0,
    ]


@given(st.lists(st.builds(RolloutSize, st.integers(0, 3), st.just(50), st.integers(1, 99)), max_size=12))
def test_arranging_never_costs_more_than_rollouts_alone(sizes: list[RolloutSize]) -> None:
    alone = of_trees(COSTS, trees_of(sizes, [[row] for row in range(len(sizes))]))
    assert of_trees(COSTS, trees_of(sizes, arrange(COSTS, sizes, 10_000))) <= alone


@pytest.mark.parametrize(
    ("loss_type", "expected"),
    [
        *[(loss_type, 1.0) for loss_type in ("dapo", "cispo", "vespo")],
        *[(loss_type, 3 / 8) for loss_type in ("grpo", "sapo", "dr_grpo", "luspo")],
        ("bnpo", 20 / 50),
    ],
)
def test_a_weight_undoes_what_the_loss_divides_by(loss_type: str, expected: float) -> None:
    assert weight(loss_type, Share(8, 50), Share(3, 20)) == expected


def test_the_weights_of_masked_tokens_divide_by_one_as_trl_does() -> None:
    assert weight("bnpo", Share(8, 0), Share(3, 20)) == 20
