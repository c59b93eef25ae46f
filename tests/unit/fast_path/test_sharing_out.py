"""Rollouts shared out among processes: every one once, room for all, and nobody waits long for another."""

from hypothesis import given
from hypothesis import strategies as st

from worker.training.fast_path.operations import Costs, of_trees
from worker.training.fast_path.packing import RolloutSize, trees_for, trees_of
from worker.training.fast_path.sharing_out import share_out

COSTS = Costs(token=1000, pair=1, label=100)
GROUP = 8
ROLLOUTS = st.builds(RolloutSize, st.integers(0, 5), st.just(60), st.integers(1, 99))


def operations(sizes: list[RolloutSize]) -> float:
    return of_trees(COSTS, trees_of(sizes, trees_for(COSTS, sizes, None)))


@given(st.lists(ROLLOUTS, max_size=24), st.integers(1, 4), st.integers(0, 3), st.sampled_from([COSTS, None]))
def test_every_rollout_is_computed_once_and_there_is_room_for_it(
    sizes: list[RolloutSize], processes: int, spare: int, costs: Costs | None
) -> None:
    most = -(-len(sizes) // processes) + spare
    shares = share_out(costs, sizes, processes, most)
    assert sorted(row for rows in shares for row in rows) == list(range(len(sizes)))
    assert all(len(rows) <= most for rows in shares)
    assert shares == share_out(costs, sizes, processes, most), "each process finds the parts of all by itself"


def test_a_group_stays_together() -> None:
    sizes = [RolloutSize(prompt, 60, 20) for prompt in range(4) for _ in range(GROUP)]
    shares = share_out(COSTS, sizes, 2, 4 * GROUP)
    assert [{sizes[row].prompt for row in rows} for rows in shares] == [{0, 2}, {1, 3}]


def test_one_group_left_is_divided() -> None:
    shares = share_out(COSTS, [RolloutSize(0, 60, 20)] * GROUP, 2, 4 * GROUP)
    assert [len(rows) for rows in shares] == [GROUP // 2, GROUP // 2]


def test_a_long_group_is_weighed_against_several_short_ones() -> None:
    long = [RolloutSize(0, 60, 400)] * GROUP
    short = [RolloutSize(prompt, 60, 100) for prompt in (1, 2, 3) for _ in range(2)]
    everything = long + short
    shares = [[everything[row] for row in rows] for rows in share_out(COSTS, everything, 2, len(everything))]
    assert [operations(share) for share in shares] == [operations(long), operations(short)]
