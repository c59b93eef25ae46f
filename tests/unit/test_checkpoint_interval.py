"""What `test_pace` leaves open of the save clock: that Young's interval is the best one, and what winds the clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.spec import CheckpointSpec
from worker.training.interval import FIRST_S, LONGEST_S, SHORTEST_S, SaveClock, checkpoint_interval_s

FOUR_HOURS_S = 4 * 3600.0


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@given(st.floats(0.05, 100), st.floats(600, 1e5), st.floats(0.2, 5))
def test_no_other_interval_loses_less(cost_s, lives_s, factor):
    """The share of time lost, to first order: saves, and half an interval redone for each machine lost."""

    def lost(interval_s: float) -> float:
        return cost_s / interval_s + interval_s / (2 * lives_s)

    best_s = checkpoint_interval_s(cost_s, lives_s)
    other_s = min(max(best_s * factor, SHORTEST_S), LONGEST_S)
    assert lost(best_s) <= lost(other_s) * (1 + 1e-9)


def test_given_minutes_are_obeyed_whatever_a_save_costs(clock):
    save_clock = SaveClock(0.1, FOUR_HOURS_S, clock)
    save_clock.note_save(500.0)
    assert save_clock.interval_s == pytest.approx(6.0)


def test_auto_follows_the_cost_and_the_life_of_a_machine(clock):
    short, long = (SaveClock("auto", lives_s, clock) for lives_s in (FOUR_HOURS_S, 4 * FOUR_HOURS_S))
    for save_clock in (short, long):
        save_clock.note_save(2.0)
    assert (short.interval_s, long.interval_s) == (pytest.approx(240.0), pytest.approx(480.0))
    short.note_save(12.5)
    assert short.interval_s == pytest.approx(600.0)


def test_every_save_winds_the_clock_whoever_asked_for_it(clock):
    save_clock = SaveClock(1.0, FOUR_HOURS_S, clock)
    clock.now_s += 59
    save_clock.note_save(0.5)
    clock.now_s += 59
    assert not save_clock.is_due()
    clock.now_s += 1
    assert save_clock.is_due()


def test_it_stays_due_until_the_save_is_made(clock):
    save_clock = SaveClock(1.0, FOUR_HOURS_S, clock)
    clock.now_s += 1000
    assert [save_clock.is_due(), save_clock.is_due()] == [True, True]
    save_clock.note_save(0.5)
    assert not save_clock.is_due()


@pytest.mark.parametrize(("every_minutes", "interval_s"), [("auto", FIRST_S), (5, 300.0), (0.5, 30.0), (None, None)])
def test_what_a_spec_may_say_is_understood(clock, every_minutes, interval_s):
    spec = CheckpointSpec(every_minutes=every_minutes)
    assert SaveClock(spec.every_minutes, FOUR_HOURS_S, clock).interval_s == interval_s
