"""How long a phase may take, and what a hang says."""

import pytest

from core.settings import Settings
from core.status import StatusReason
from worker.run_directory import Pulse
from worker.training.phases import Phase, PhaseTimer
from worker.watchdog import STARTING, Watchdog

SETTINGS = Settings(_env_file=None, watchdog_first_s=100.0, watchdog_least_s=10.0, watchdog_factor=3.0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watchdog(clock: Clock) -> Watchdog:
    return Watchdog(SETTINGS, clock)


@pytest.mark.parametrize(
    ("longest_s", "deadline_s"),
    [(None, 100.0), (0.5, 10.0), (5.0, 15.0)],
    ids=["never seen to end", "short ones have a floor", "a multiple of the longest"],
)
def test_the_deadline_is_learned(watchdog: Watchdog, clock: Clock, longest_s: float | None, deadline_s: float):
    pulse = Pulse(phase="generation", since=clock.now, longest_s=longest_s, step=7)
    clock.now += deadline_s
    assert watchdog.look(pulse) is None
    clock.now += 0.1
    hang = watchdog.look(pulse)
    assert hang is not None
    assert hang.deadline_s == deadline_s


def test_before_the_first_sign_the_start_of_the_process_counts(watchdog: Watchdog, clock: Clock):
    clock.now += 500
    watchdog.start()
    clock.now += 99
    assert watchdog.look(None) is None
    clock.now += 2
    hang = watchdog.look(None)
    assert hang is not None
    assert hang.pulse.phase == STARTING


def test_a_hang_says_where_how_long_and_what_was_usual(watchdog: Watchdog, clock: Clock):
    clock.now += 50
    hang = watchdog.look(Pulse(phase="reward", since=1000.0, longest_s=2.0, step=12))
    assert hang is not None
    failure = hang.failure("File reward.py, line 3 in wait")
    assert (failure.reason, failure.code, failure.retryable) == (StatusReason.TRAINER_HUNG, "trainer_hung", True)
    assert failure.message == (
        "The trainer hung: after step 12, phase reward lasted 50 s; it took 2.0 s at most, and 10 s were allowed.\n"
        "File reward.py, line 3 in wait"
    )


def test_a_generation_that_hangs_points_at_the_engine(watchdog: Watchdog, clock: Clock):
    clock.now += 50
    hang = watchdog.look(Pulse(phase=Phase.GENERATION, since=1000.0, longest_s=2.0, step=12))
    assert hang is not None
    assert "the engine that hangs" in (hang.failure("").fix or "")


def test_what_the_process_did_before_its_run_teaches_no_deadline():
    """The imports are part of loading, and take seconds; the model that is loaded next may take an hour."""
    clock, told = Clock(), []
    timer = PhaseTimer(clock)
    with timer.phase(Phase.LOAD):
        clock.now += 8
    timer.tell(lambda phase, since, longest_s: told.append((phase, longest_s)))
    with timer.phase(Phase.LOAD):
        clock.now += 500
    assert told == [(Phase.REST, None), (Phase.LOAD, None), (Phase.REST, 0.0)]
    with timer.phase(Phase.LOAD):
        pass
    assert told[3] == (Phase.LOAD, 500.0)
