"""When a rate began to rise, and how seldom a rate that stays is said to."""

import random
from collections.abc import Iterator

import pytest

from core.learning.change_point import Count, first_rise, standing_rise


def drawn(generator: random.Random, rates: Iterator[float], size: int) -> list[Count]:
    return [
        Count(step, sum(generator.random() < rate for _ in range(size)), size)
        for step, rate in enumerate(rates, start=1)
    ]


def rates(before: float, after: float, *, change: int, steps: int) -> Iterator[float]:
    return (before if step < change else after for step in range(1, steps + 1))


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_a_rate_that_stays_has_not_risen(rate: float):
    for seed in range(10):
        counts = drawn(random.Random(seed), rates(rate, rate, change=1, steps=500), 6)
        assert first_rise(counts) is None, f"seed {seed}"


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.5), (0.02, 0.7), (0.2, 0.9)])
def test_a_jump_is_found_within_a_few_steps_and_dated(before: float, after: float):
    for seed in range(20):
        rise = first_rise(drawn(random.Random(seed), rates(before, after, change=150, steps=200), 8))
        assert rise is not None, f"seed {seed}"
        assert 140 <= rise.began <= 152
        assert 150 <= rise.found <= 154
        assert rise.rate_before < rise.rate_since


def test_a_rise_of_less_than_matters_is_left_alone():
    for seed in range(10):
        assert first_rise(drawn(random.Random(seed), rates(0.3, 0.34, change=150, steps=400), 8)) is None


def test_a_slow_rise_is_found_before_it_is_over():
    ramp = (min(0.8, max(0.0, (step - 100) / 100)) for step in range(1, 201))
    rise = first_rise(drawn(random.Random(3), ramp, 8))
    assert rise is not None
    assert 100 <= rise.began <= 120
    assert rise.found <= 130


def test_a_falling_rate_is_no_rise():
    assert first_rise(drawn(random.Random(5), rates(0.9, 0.1, change=60, steps=120), 8)) is None


def test_the_first_steps_only_say_what_was_before():
    assert first_rise(drawn(random.Random(1), rates(0.0, 1.0, change=2, steps=9), 8)) is None
    assert first_rise([]) is None


def rates_of(*stretches: tuple[int, float]) -> Iterator[float]:
    return (rate for steps, rate in stretches for _ in range(steps))


def test_a_rise_stands_as_long_as_the_rate_is_up():
    for seed in range(20):
        counts = drawn(random.Random(seed), rates(0.05, 0.6, change=60, steps=400), 6)
        assert standing_rise(counts) == first_rise(counts) is not None, f"seed {seed}"


def test_a_rise_that_went_back_is_over_within_a_few_steps():
    for seed in range(20):
        counts = drawn(random.Random(seed), rates_of((60, 0.05), (40, 0.6), (40, 0.05)), 6)
        over = next(end for end in range(90, 141) if standing_rise(counts[:end]) is None)
        assert 101 <= over <= 115, f"seed {seed}"
        assert all(standing_rise(counts[:end]) is None for end in range(over, 141)), f"seed {seed}"


def test_after_a_rise_that_went_back_the_next_is_held_against_the_rate_without_it():
    for seed in range(20):
        counts = drawn(random.Random(seed), rates_of((60, 0.05), (80, 0.6), (40, 0.05), (20, 0.6)), 6)
        rise = standing_rise(counts)
        assert rise is not None, f"seed {seed}"
        assert 140 < rise.began <= 182
        assert rise.found <= 184
        assert rise.rate_before < 0.12
