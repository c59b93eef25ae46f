"""The comparison of two versions of a reward, by hand and against scipy."""

import math
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kendalltau

from core.recorded import Coverage, LeftOut, RecordedStep, notes_on
from core.rescoring import (
    MOST_EXAMPLES,
    MOST_TEXT,
    Regraded,
    choose_steps,
    compare,
    evaluation_change,
    kendall_tau_b,
    verdicts,
)


def regraded(old: float | None, new: float | None, *, index: int = 0, group: int = 0, **changes: Any) -> Regraded:
    facts = {"step": 1, "row": 1, "prompt": "p", "completion": "c", **changes}
    return Regraded(old=old, new=new, index=index, group=group, **facts)


def group(old: list[float | None], new: list[float | None], *, number: int = 0, **changes: Any) -> list[Regraded]:
    return [
        regraded(before, after, index=10 * number + place, group=number, **changes)
        for place, (before, after) in enumerate(zip(old, new, strict=True))
    ]


@pytest.mark.parametrize(
    ("one", "other", "tau"),
    [
        ([1, 2, 3], [10, 20, 30], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 1, 2], [1, 2, 3], 2 / math.sqrt(2 * 3)),
        ([1, 1, 1], [1, 2, 3], None),
        ([1, 2, 3], [0, 0, 0], None),
        ([1], [1], None),
        ([], [], None),
    ],
)
def test_tau_b_by_its_definition(one, other, tau):
    assert kendall_tau_b(one, other) == (None if tau is None else pytest.approx(tau))


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=12))
def test_tau_b_is_scipys(pairs):
    one, other = zip(*pairs, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = float(kendalltau(one, other).statistic)
    found = kendall_tau_b(one, other)
    assert (math.isnan(wanted) and found is None) or found == pytest.approx(wanted)


def test_ranks_are_compared_within_groups_only():
    report = compare([*group([0, 1], [0, 1]), *group([5, 6], [3, 2], number=1)], threshold=1.0)
    assert (report.ranks.groups, report.ranks.tau_b) == (2, 0.0)
    assert (report.ranks.pairs, report.ranks.flipped) == (2, 1)


def test_pairs_that_one_version_alone_orders_are_told_apart():
    report = compare(group([0, 0, 1], [0, 1, 1]), threshold=1.0)
    assert (report.ranks.pairs, report.ranks.flipped) == (1, 0)
    assert (report.ranks.newly_equal, report.ranks.newly_ordered) == (1, 1)


def test_flat_is_equal_as_the_trainer_compares():
    equal_there, other = 0.1 + 0.2, 0.3 + 1e-6
    report = compare([*group([0.3, equal_there], [0.3, other]), *group([0, 1], [1, 1], number=1)], threshold=1.0)
    assert (report.flat.share_old, report.flat.share_new) == (0.5, 0.5)
    assert report.steps[0].silent_share_old == 0.5
    alone = compare(group([1, None], [None, None]), threshold=1.0)
    assert (alone.flat.groups_old, alone.flat.share_old) == (1, 1.0)
    assert (alone.flat.groups_new, alone.flat.share_new) == (0, None)


def test_errors_are_counted_and_never_scored():
    ones = [
        regraded(1.0, 0.0, index=0),
        regraded(0.5, None, index=1, error="ValueError: oh"),
        regraded(0.0, None, index=2),
    ]
    report = compare(ones, threshold=1.0, left_out=7)
    assert (report.rollouts, report.left_out, report.errors, report.no_answer) == (3, 7, 1, 1)
    blanked = compare([regraded(1.0, None, other_error=True), *ones], threshold=1.0)
    assert (blanked.errors, blanked.other_errors, blanked.no_answer) == (1, 1, 1)
    assert report.last_error == "ValueError: oh"
    assert (report.mean_old, report.mean_new) == (0.5, 0.0)
    assert report.verdicts.compared == 1
    assert report.ranks.pairs == 0
    assert [example.index for example in report.most_changed] == [0]


def test_verdicts_change_at_the_threshold():
    found = verdicts([(0.4, 0.5), (0.5, 0.4), (0.5, 0.6), (0.1, 0.2), (None, 1.0), (1.0, None)], 0.5)
    assert (found.compared, found.failed_to_passed, found.passed_to_failed) == (4, 1, 1)


def test_means_stand_by_step_in_order():
    ones = [
        regraded(1.0, 0.0, step=2, old_term=2.0, new_term=0.0),
        regraded(0.0, 1.0, step=1, old_term=None, new_term=4.0),
        regraded(0.0, None, step=1, index=1),
    ]
    first, second = compare(ones, threshold=1.0).steps
    assert (first.step, first.rollouts, first.old, first.new) == (1, 2, 0.0, 1.0)
    assert (first.old_term, first.new_term) == (None, 4.0)
    assert (second.step, second.old, second.new, second.old_term) == (2, 1.0, 0.0, 2.0)


def test_the_largest_changes_are_shown_and_their_texts_are_cut():
    ones = [regraded(0.0, float(number), index=number, completion="x" * 2000 + str(number)) for number in range(30)]
    report = compare(ones, threshold=1.0)
    assert [example.new for example in report.most_changed] == [float(number) for number in range(29, 19, -1)]
    assert len(report.most_changed) == MOST_EXAMPLES
    assert len(report.most_changed[0].completion) == MOST_TEXT
    assert report.most_changed[0].completion.endswith("29")


def test_nothing_regraded_is_no_fault():
    report = compare([], threshold=1.0)
    assert (report.rollouts, report.mean_old, report.steps, report.ranks.tau_b) == (0, None, (), None)


def test_an_evaluation_tells_errors_from_no_answers():
    found = evaluation_change("final", 9, [(1.0, 0.0), (0.0, None), (0.0, None)], errors=1, threshold=1.0)
    assert (found.answers, found.errors, found.no_answer) == (3, 1, 1)
    assert (found.mean_old, found.mean_new) == (pytest.approx(1 / 3), 0.0)
    assert found.verdicts.passed_to_failed == 1


@pytest.mark.parametrize(
    ("steps", "limit", "chosen"),
    [
        (range(1, 5), 100, [1, 2, 3, 4]),
        (range(1, 10), 24, [1, 5, 9]),
        (range(1, 10), 16, [1, 9]),
        (range(1, 10), 8, [9]),
        (range(1, 10), 1, [9]),
        ((), 10, []),
    ],
)
def test_steps_are_spread_evenly_from_the_first_to_the_last(steps, limit, chosen):
    assert choose_steps(dict.fromkeys(steps, 8), limit) == chosen


def test_steps_with_fewer_rollouts_count_as_what_they_are():
    assert choose_steps({1: 8, 2: 8, 3: 1}, 9) == [1, 3]
    assert choose_steps({1: 8, 2: 8, 3: 1}, 17) == [1, 2, 3]
    assert len(choose_steps(dict.fromkeys(range(100_000), 8), 1000)) == 125


def recorded(share: float | None, groups: int) -> RecordedStep:
    coverage = Coverage(rollouts=8, groups=4, recorded_rollouts=2 * groups + 1, recorded_groups=groups)
    return RecordedStep(coverage=coverage, run_silent_share=share)


def test_coverage_and_the_runs_own_silence_stand_beside_the_numbers():
    report = compare(group([0, 1], [0, 1]), threshold=1.0, recorded={1: recorded(0.75, 1), 2: recorded(0.25, 0)})
    assert report.coverage == Coverage(rollouts=16, groups=8, recorded_rollouts=4, recorded_groups=1)
    assert (report.flat.share_old, report.flat.run_silent_share) == (0.0, 0.5)
    first, second = report.steps
    assert (first.run_silent_share, first.silent_share_old, first.coverage) == (0.75, 0.0, recorded(0, 1).coverage)
    assert (second.step, second.rollouts, second.old, second.run_silent_share) == (2, 0, None, 0.25)


def test_a_cut_record_and_what_was_left_out_are_said_in_words():
    whole = Coverage(rollouts=8, groups=4, recorded_rollouts=8, recorded_groups=4)
    assert notes_on(whole, LeftOut(), reads_batches=True) == []
    cut, batch, left_out = notes_on(recorded(0.5, 1).coverage, LeftOut(in_cut_groups=1, no_time=6), reads_batches=True)
    assert "of the recorded groups, 1 of 4" in cut
    assert "recorded part of each" in batch
    assert left_out == (
        "Of the recorded rollouts 7 were left out: 1 in groups that are not on record whole, 6 for want of time."
    )
    assert len(notes_on(recorded(0.5, 1).coverage, LeftOut(evaluations=2), reads_batches=False)) == 2
