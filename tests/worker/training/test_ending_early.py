"""Runs that end before their last step by the job's own rule, and come out the same however often they are stopped."""

from typing import Any

import pytest

from tests.worker.training.runs import Ended, Trainers, failed_with
from worker.run_directory import CheckpointSaved, Notice

SAME_FOR_ALL = "def reward(completion, want):\n    return 0.5\n"
LAYOUT: dict[str, Any] = {
    "hyperparameters": {"max_steps": 12},
    "checkpoints": {"every_steps": 100, "every_minutes": None},
}
STARVED = {"stop": {"silent_share_above": 0.9, "window": 5, "then": "stop"}}


def notices(ended: Ended) -> list[str]:
    return [entry.code for entry in ended.entries(Notice) if entry.code in ("signal_starved", "ended_early")]


@pytest.fixture(scope="module")
def stopped_early(trainers: Trainers) -> Ended:
    ended = trainers.train("starved", rewards={"flat": SAME_FOR_ALL}, **LAYOUT, **STARVED)
    assert ended.exit_code == 0, ended.log
    return ended


def test_a_run_without_signal_ends_after_its_window_and_is_published(stopped_early: Ended):
    summary = stopped_early.outcome.summary
    assert summary is not None
    assert (summary.final_step, max(stopped_early.steps)) == (5, 5)
    assert summary.ended_early is not None
    assert "100.0% of the groups" in summary.ended_early
    assert [entry.step for entry in stopped_early.entries(CheckpointSaved)] == [5]
    assert stopped_early.evaluation("final").step == 5
    assert notices(stopped_early) == ["ended_early"]


def test_resumed_after_its_early_end_it_only_takes_the_final_evaluation(trainers: Trainers, stopped_early: Ended):
    resumed = trainers.train(
        "starved-resumed", rewards={"flat": SAME_FOR_ALL}, resume=(stopped_early.run, 5), **LAYOUT, **STARVED
    )
    assert resumed.steps == {}
    assert resumed.weights == stopped_early.weights
    assert resumed.evaluation("final").tasks == stopped_early.evaluation("final").tasks


def test_killed_within_the_window_it_ends_at_the_same_step(trainers: Trainers, stopped_early: Ended):
    first, second = trainers.train_killed(
        "starved-killed",
        ["step.reported@4=kill"],
        rewards={"flat": SAME_FOR_ALL},
        **{**LAYOUT, "checkpoints": {"every_steps": 2}},
        **STARVED,
    )
    assert max(first.steps) == 4
    assert max(second.steps) == 5
    assert second.weights == stopped_early.weights


def test_a_pause_saves_the_step_and_a_resume_gets_a_whole_new_window(trainers: Trainers):
    rule = {"stop": {"silent_share_above": 0.9, "window": 5, "then": "pause"}}
    paused = trainers.train("starved-paused", rewards={"flat": SAME_FOR_ALL}, **LAYOUT, **rule)
    assert "100.0% of the groups" in failed_with(paused, "signal_starved")
    failure = paused.outcome.failure
    assert failure is not None
    assert failure.pauses
    assert [entry.step for entry in paused.entries(CheckpointSaved)] == [5]
    resumed = trainers.train(
        "starved-paused-resumed", rewards={"flat": SAME_FOR_ALL}, resume=(paused.run, 5), **LAYOUT, **rule
    )
    failed_with(resumed, "signal_starved")
    assert sorted(resumed.steps) == [6, 7, 8, 9, 10]


def test_a_warning_ends_nothing_and_is_given_once(trainers: Trainers):
    rule = {"stop": {"silent_share_above": 0.9, "window": 5, "then": "warn"}}
    warned = trainers.train("warned", rewards={"flat": SAME_FOR_ALL}, **LAYOUT, **rule)
    assert (warned.exit_code, max(warned.steps), notices(warned)) == (0, 12, ["signal_starved"])


PATIENT: dict[str, Any] = {**LAYOUT, "evaluation": {"every_steps": 2}, "stop": {"held_out_patience": 2}}


def test_without_a_better_held_out_score_patience_ends(trainers: Trainers):
    ended = trainers.train("impatient", rewards={"flat": SAME_FOR_ALL}, **PATIENT)
    assert ended.exit_code == 0, ended.log
    assert (max(ended.steps), notices(ended)) == (4, ["ended_early"])
    again = trainers.train("impatient-resumed", rewards={"flat": SAME_FOR_ALL}, resume=(ended.run, 4), **PATIENT)
    assert again.steps == {}
    assert again.weights == ended.weights
