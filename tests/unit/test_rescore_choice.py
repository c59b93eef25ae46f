"""Which stored rollouts are read to be graded again."""

from core.db.rescoring import Outline
from core.recorded import LeftOut
from worker.grading_tasks.rescore_reading import choose


def outlines(*indices: int, size_bytes: int = 10) -> list[Outline]:
    return [Outline(index, index // 2 + 1, size_bytes) for index in indices]


def test_only_whole_groups_are_compared():
    chosen = choose({1: outlines(0, 2, 3, 5), 2: outlines(4)}, 2)
    assert {step: [one.index for one in ones] for step, ones in chosen.steps.items()} == {1: [2, 3], 2: []}
    assert (chosen.left_out, chosen.rollouts, chosen.size_bytes) == (LeftOut(in_cut_groups=3), 2, 20)


def test_steps_are_spread_evenly_where_bytes_do_not_allow_all():
    chosen = choose({step: outlines(0, 1) for step in range(1, 6)}, 2, over_limit=7, most_bytes=65)
    assert list(chosen.steps) == [1, 3, 5]
    assert chosen.left_out == LeftOut(over_limit=7, too_large=4)


def test_of_one_step_that_is_too_large_the_first_groups_are_read():
    chosen = choose({1: outlines(*range(8))}, 2, most_bytes=45)
    assert [one.index for one in chosen.steps[1]] == [0, 1, 2, 3]
    assert chosen.left_out == LeftOut(too_large=4)
    assert choose({1: outlines(0, 1)}, 2, most_bytes=19).rollouts == 0
