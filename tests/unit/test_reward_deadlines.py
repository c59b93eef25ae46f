"""Graders that are down cost their own time, and never so much that the trainer seems to hang."""

from collections.abc import Sequence
from pathlib import Path

from core.builtin_rewards.outside import Http
from core.rows import Row
from core.settings import Settings
from tests.factories import make_reward
from worker.grading.builtins.endpoint import HttpGrader
from worker.grading.client import Grader
from worker.grading.grades import Grade, GradeOutcome, Rollout
from worker.run_directory import Pulse
from worker.training.phases import Phase, PhaseTimer
from worker.training.rewards import TERM_S, Completion, Rewards
from worker.watchdog import Watchdog

SETTINGS = Settings(_env_file=None)
DOWN = Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message="away")
ANSWER = Completion(Row(1, "What?", {}), "42", [1], is_truncated=False)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow(Grader):
    """Takes all the time that it is given."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Path())
        self._clock = clock

    def grade(self, rollouts: Sequence[Rollout], *, step: int = 0, until: float | None = None) -> list[Grade]:
        assert until is not None
        self._clock.now = until
        return [DOWN] * len(rollouts)


def test_terms_that_are_all_down_are_no_hang() -> None:
    clock, told = Clock(), []
    names = ["a", "b", "c"]
    rewards = Rewards({name: Slow(clock) for name in names}, [make_reward(name) for name in names], clock)
    phases, watchdog = PhaseTimer(clock), Watchdog(SETTINGS, clock)

    def tell(phase: Phase, since: float, longest_s: float | None) -> None:
        """A part has ended: it took no longer than a watchdog that had seen short ones only would have waited."""
        if told:
            assert watchdog.look(Pulse(phase=phase, since=told[-1], longest_s=0.1)) is None
        told.append(since)

    phases.tell(tell)
    rewards.on_term = phases.beat
    with phases.phase(Phase.EVALUATION):
        clock.now += 50  # it generates
        (scored,) = rewards.score([ANSWER], step=3)
    assert clock.now == 1050 + 3 * TERM_S
    assert scored.is_infrastructure_error


def test_an_endpoint_that_may_take_long_is_not_asked_beyond_its_terms_time() -> None:
    clock = Clock()
    clock.now = -1e9  # long over, for the grader's own clock
    slow = HttpGrader(Http(builtin="http", url="http://127.0.0.1:9/", timeout_s=300), allow_private=True)
    (scored,) = Rewards({"http": slow}, [make_reward("http")], clock).score([ANSWER], step=0)
    assert scored.grades["http"].timed_out
