"""When to save: by the clock, and whether a save still fits into a grace."""

import math

import pytest

from worker.training.interval import FIRST_S, LONGEST_S, SHORTEST_S, SaveClock, checkpoint_interval_s
from worker.training.pace import Need, Pace
from worker.training.stop import StopChoice, decide


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def step(pace: Pace, clock: Clock, seconds: float) -> None:
    pace.begin_step()
    clock.now += seconds
    pace.end_step()


def test_nobody_can_say_how_long_the_first_step_takes():
    clock = Clock()
    pace = Pace(clock=clock)
    pace.begin_step()
    assert pace.time_to_safe() == Need(math.inf, 0.0)


def test_the_rest_of_the_longest_step_and_a_save_are_needed():
    clock = Clock()
    pace = Pace(clock=clock)
    step(pace, clock, 4.0)
    with pace.saving():
        clock.now += 1.5
    step(pace, clock, 3.0)
    pace.begin_step()
    clock.now += 1.0
    assert pace.time_to_safe() == Need(step_s=pytest.approx(4.0 - 1.0), save_s=1.5)


def test_a_save_is_expected_to_take_what_one_of_an_earlier_attempt_took():
    clock = Clock()
    pace = Pace(3.0, clock=clock)
    assert pace.time_to_safe() == Need(0.0, 3.0)
    with pace.saving() as seconds:
        clock.now += 2.0
        assert (pace.is_saving, seconds()) == (True, 2.0)
    assert (pace.is_saving, pace.time_to_safe()) == (False, Need(0.0, 2.0))


def test_nobody_can_say_when_a_step_that_is_late_will_end():
    clock = Clock()
    pace = Pace(clock=clock)
    step(pace, clock, 2.0)
    pace.begin_step()
    clock.now += 60
    assert pace.time_to_safe() == Need(math.inf, 0.0)


def test_between_steps_only_the_save_is_left():
    clock = Clock()
    pace = Pace(clock=clock)
    step(pace, clock, 30.0)
    assert pace.time_to_safe() == Need(0.0, 0.0)


@pytest.mark.parametrize(
    ("step_s", "save_s", "upload_s", "choice"),
    [
        (10, 5, 10, StopChoice.FINISH),
        (24, 1, 5, StopChoice.FINISH),  # a moment for the upload is granted in any case
        (10, 5, 11, StopChoice.SAVE_LAST),  # the step would be finished and saved, and lost on its way
        (25, 1, 0, StopChoice.SAVE_LAST),
        (math.inf, 5, 10, StopChoice.SAVE_LAST),
        (0, 5, 21, StopChoice.LEAVE),
        (0, 26, 0, StopChoice.LEAVE),
        (100, 5, 21, StopChoice.LEAVE),
    ],
)
def test_in_a_grace_of_25_s_is_done_what_becomes_durable(step_s, save_s, upload_s, choice):
    assert decide(Need(step_s, save_s, upload_s), 25.0).choice is choice


def test_the_interval_is_youngs_within_its_bounds():
    assert checkpoint_interval_s(2.0, 7200.0) == pytest.approx(math.sqrt(2 * 2.0 * 7200.0))
    assert checkpoint_interval_s(0.001, 60.0) == SHORTEST_S
    assert checkpoint_interval_s(600.0, 1e9) == LONGEST_S


def test_an_automatic_interval_is_learned_from_the_first_save():
    clock = Clock()
    saves = SaveClock("auto", 7200.0, clock)
    assert saves.interval_s == FIRST_S
    clock.now = FIRST_S
    assert saves.is_due()
    saves.note_save(2.0)
    assert not saves.is_due()
    clock.now += math.sqrt(2 * 2.0 * 7200.0) + 0.01
    assert saves.is_due()


def test_minutes_are_minutes_and_none_is_never():
    clock = Clock()
    fixed, never = SaveClock(0.5, 7200.0, clock), SaveClock(None, 7200.0, clock)
    clock.now = 29.9
    assert not fixed.is_due()
    clock.now = 1e9
    assert fixed.is_due()
    assert not never.is_due()


def test_what_came_before_training_is_not_unsaved():
    clock = Clock()
    saves = SaveClock(1.0, 7200.0, clock)
    clock.now = 59.0
    saves.begin()
    clock.now = 61.0
    assert not saves.is_due()
