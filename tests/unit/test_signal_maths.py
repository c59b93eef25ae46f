"""Flat groups and what to expect of other sizes: against figures worked out by hand, and laws that always hold."""

import random
from itertools import pairwise
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.signal_report import FlatCause, FlatReason
from core.verdict import wilson
from worker.training.signal_maths import (
    SIZES,
    Group,
    Sample,
    estimate_sizes,
    flat_causes,
    flat_probability,
    flat_reason,
    mean_ci95,
    pass_rate_histogram,
    silent_chances,
)

GRADES = st.sampled_from([0.0, 0.25, 1.0])
REWARDS = st.lists(GRADES, min_size=1, max_size=16)


def group(rewards, row=1) -> Group:
    """Of completions that all differ; a reward of None is one that could not be graded."""
    samples = tuple(Sample(f"text {n}", 5, is_truncated=False, reward=reward) for n, reward in enumerate(rewards))
    return Group(row=row, prompt_tokens=7, samples=samples)


GROUPS = st.integers(2, 12).flatmap(
    lambda size: st.lists(
        st.lists(st.none() | GRADES, min_size=size, max_size=size).map(group), min_size=1, max_size=6
    ).map(lambda groups: (size, groups))
)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([1.0, 1.0, 1.0], FlatReason.ALL_PASSED),
        ([0.9, 0.9], FlatReason.ALL_EQUAL_PARTIAL),
        ([0.0, 0.0], FlatReason.ALL_FAILED),
        ([-1.0, -1.0], FlatReason.ALL_FAILED),
        ([], FlatReason.UNGRADED),
        ([1.0], FlatReason.SINGLE_GRADED),
        ([0.0, 1.0], None),
        ([0.1 + 0.2, 0.3], FlatReason.ALL_EQUAL_PARTIAL),
        ([0.3 + 1e-6, 0.3], None),
    ],
)
def test_a_group_is_flat_for_the_reason_that_its_rewards_show(rewards, reason):
    assert flat_reason(rewards, pass_threshold=1.0) is reason


def test_a_group_of_penalties_passes_at_their_threshold_of_zero():
    assert flat_reason([0.0, 0.0], pass_threshold=0.0) is FlatReason.ALL_PASSED


def test_the_completions_tell_why_they_are_all_alike():
    same = (Sample("a", 1, is_truncated=False, reward=0.0),) * 3
    cut = tuple(Sample(text, 8, is_truncated=True, reward=0.0) for text in "abc")
    assert flat_causes(same) == (FlatCause.IDENTICAL_COMPLETIONS,)
    assert flat_causes(cut) == (FlatCause.ALL_TRUNCATED,)
    assert flat_causes(group([0.0, 0.0]).samples) == ()


def test_smaller_groups_are_counted_among_the_subsets_of_the_seen_one():
    """5 of 8 passed: of the 70 subsets of four, 5 have only passes and none only failures."""
    assert flat_probability([1.0] * 5 + [0.0] * 3, 4) == pytest.approx(comb(5, 4) / comb(8, 4)) == pytest.approx(5 / 70)
    assert flat_probability([1.0] * 4 + [0.0] * 4, 2) == pytest.approx(12 / 28)
    assert flat_probability([1.0, 0.5, 0.0], 2) == 0


def test_larger_groups_stay_flat_as_jeffreys_prior_expects():
    """8 of 8 the same: the ninth is too with probability 8.5 / 9, and then the tenth with 9.5 / 10."""
    assert flat_probability([1.0] * 8, 9) == pytest.approx(8.5 / 9)
    assert flat_probability([1.0] * 8, 10) == pytest.approx(8.5 / 9 * 9.5 / 10)
    assert flat_probability([1.0] * 7 + [0.0], 9) == 0


def test_the_share_of_the_probed_size_is_the_one_that_was_seen():
    groups = [group([1.0] * 4), group([0.0] * 4), group([0.0, 1.0, 1.0, 1.0]), group([None] * 4)]
    assert silent_chances(groups, 4) == [1, 1, 0]


def test_where_half_was_not_graded_half_of_a_larger_group_would_not_be_either():
    """Two graded of four, both passed: a group of eight has four graded ones."""
    half = group([1.0, 1.0, None, None])
    assert silent_chances([half], 8) == pytest.approx([flat_probability([1.0, 1.0], 4)])


def test_nothing_is_expected_where_nothing_was_graded():
    assert silent_chances([group([None, None])], 4) == []
    assert estimate_sizes([group([None, None])], samples=2, num_generations=8) == ()


def test_estimates_name_their_estimator_and_the_price_of_a_group_with_signal():
    groups = [group([1.0] * 8), group([1.0] * 4 + [0.0] * 4)]
    found = {size.num_generations: size for size in estimate_sizes(groups, samples=8, num_generations=6)}
    assert list(found) == [4, 6, 8, 16, 32]
    assert [size.estimator for size in found.values()] == ["subsets"] * 3 + ["extension"] * 2
    assert found[8].silent_share == 0.5
    assert found[8].completions_per_signal == 16
    assert found[4].silent_share == pytest.approx((1 + 2 / 70) / 2)
    (hopeless,) = (
        size for size in estimate_sizes([groups[0]], samples=8, num_generations=8) if size.num_generations == 8
    )
    assert hopeless.completions_per_signal is None


def test_never_and_always_have_bins_of_their_own_and_edges_belong_to_the_lower_tenth():
    bins = pass_rate_histogram([(0, 8), (8, 8), (8, 8), (1, 10), (1, 8), (9, 10), (63, 64)])
    assert len(bins) == 12
    found = {(one.low, one.high): one.prompts for one in bins if one.prompts}
    assert found == {(0, 0): 1, (0, 0.1): 1, (0.1, 0.2): 1, (0.8, 0.9): 1, (0.9, 1): 1, (1, 1): 2}


@given(REWARDS, st.integers(2, 70))
def test_a_larger_group_is_never_expected_to_be_flat_more_often(rewards, size):
    smaller, larger = flat_probability(rewards, size), flat_probability(rewards, size + 1)
    assert 0 <= larger <= smaller + 1e-12 <= 1 + 1e-9


@given(GROUPS)
def test_shares_are_shares_and_fall_with_the_size(probed):
    size, groups = probed
    estimates = estimate_sizes(groups, samples=size, num_generations=size)
    shares = [estimate.silent_share for estimate in estimates]
    assert all(0 <= share <= 1 for share in shares)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(shares))
    assert estimates == () or {estimate.num_generations for estimate in estimates} == {*SIZES, size}


@given(GROUPS)
def test_every_size_has_an_interval_around_its_share_and_none_shrinks_to_a_point(probed):
    size, groups = probed
    for estimate in estimate_sizes(groups, samples=size, num_generations=size):
        low, high = estimate.silent_share_ci95
        assert 0 <= low <= estimate.silent_share + 1e-12 <= high + 1e-9 <= 1 + 1e-9
        assert high - low > 0.1, "of six prompts at most, nothing is that sure"


def test_an_interval_covers_the_true_share_of_prompts_as_often_as_it_says():
    """Of a file whose prompts are silent by chance 0.05, 0.3, or surely: 30 drawn at random, again and again."""
    draw, kinds = random.Random(7), [0.05, 0.05, 0.3, 1.0]
    truth = sum(kinds) / len(kinds)
    intervals = [mean_ci95(draw.choices(kinds, k=30)) for _ in range(400)]
    assert sum(low <= truth <= high for low, high in intervals) >= 0.95 * 400


def test_beyond_the_probed_size_an_interval_reaches_as_high_as_that_sizes_own():
    """However often prompts that were always solved really are: larger groups are not silent more often."""
    groups = [group([1.0] * 4)] * 6 + [group([0.0, 1.0, 0.0, 1.0])] * 6
    probed, larger = estimate_sizes(groups, samples=4, num_generations=4)[:2]
    assert (probed.silent_share_ci95, probed.num_generations) == (wilson(6, 12), 4)
    assert larger.silent_share_ci95[1] == probed.silent_share_ci95[1]
    assert larger.silent_share_ci95[0] < probed.silent_share_ci95[0]


@given(GROUPS)
def test_the_probed_size_gives_back_the_share_of_flat_groups(probed):
    size, groups = probed
    graded = [one.rewards for one in groups if one.rewards]
    flat = [flat_reason(rewards, 1.0) is not None for rewards in graded]
    assert silent_chances(groups, size) == flat
    estimates = estimate_sizes(groups, samples=size, num_generations=size)
    own = [estimate.silent_share_ci95 for estimate in estimates if estimate.num_generations == size]
    assert own == ([wilson(sum(flat), len(flat))] if flat else [])


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 64)).filter(lambda pair: pair[0] <= pair[1]), max_size=50))
def test_every_prompt_is_in_the_bin_of_its_rate(passed_of):
    bins = pass_rate_histogram(passed_of)
    assert sum(one.prompts for one in bins) == len(passed_of)
    for one in bins:
        inside = [
            p / n for p, n in passed_of if (one.low < p / n <= one.high and p < n) or one.low == one.high == p / n
        ]
        assert len(inside) == one.prompts
