"""Rewards that fail: now and then, always, later, or before they are loaded."""

from statistics import fmean

import pytest

from tests.worker.training.runs import Ended, Trainers, failed_with
from worker.run_directory import (
    Notice,
    RolloutsDone,
)

SOMETIMES = """\
def reward(completion, want):
    if "a" in completion:
        raise ValueError("no letter a, please")
    return len(completion) / 10
"""
LENGTH = "def reward(completion):\n    return len(completion) / 10\n"


@pytest.fixture(scope="module")
def shaky(trainers: Trainers) -> Ended:
    """Two terms; one of them fails on some completions."""
    ended = trainers.train("shaky", rewards={"length": LENGTH, "sometimes": SOMETIMES})
    assert ended.exit_code == 0, ended.log
    return ended


def test_a_failed_term_blanks_its_rollout_and_is_never_a_zero(shaky: Ended) -> None:
    failed = [rollout for rollout in shaky.rollouts if "a" in rollout.completion]
    assert failed
    for rollout in failed:
        grade = rollout.grades["sometimes"]
        assert (grade.outcome, grade.value, rollout.reward, rollout.advantage) == ("user_error", None, None, 0.0)
        assert "no letter a, please" in (grade.error or "")
        assert rollout.grades["length"].outcome == "scored"
    for rollout in shaky.rollouts:
        if rollout not in failed:
            assert rollout.reward == pytest.approx(len(rollout.completion) / 5)


def test_trl_averages_over_graded_rollouts_only(shaky: Ended) -> None:
    for entry in shaky.entries(RolloutsDone):
        graded = [len(rollout.completion) / 10 for rollout in entry.rollouts if rollout.reward is not None]
        assert shaky.steps[entry.step]["rewards/length/mean"] == pytest.approx(fmean(graded))
        assert shaky.steps[entry.step]["reward"] == pytest.approx(2 * fmean(graded))


def test_ungraded_rollouts_and_answers_are_counted(shaky: Ended) -> None:
    assert shaky.outcome.summary is not None
    assert shaky.outcome.summary.ungraded_rollouts == sum(rollout.reward is None for rollout in shaky.rollouts)
    answers = [task.sampled[0] for name in ("baseline", "final") for task in shaky.evaluation(name).tasks]
    assert any(answer.reward is None and answer.passed is None for answer in answers)
    assert "evaluation_errors" in {notice.code for notice in shaky.entries(Notice)}


def test_a_reward_that_always_fails_ends_the_run_before_training(trainers: Trainers) -> None:
    source = "def reward(completion, want):\n    return want['nothing']\n"
    message = failed_with(trainers.train("broken", rewards={"broken": source}), "grader_failed")
    assert "TypeError" in message
    assert "want['nothing']" in message


def test_a_reward_that_stops_working_ends_the_run(trainers: Trainers) -> None:
    source = (
        "def reward(completions, trainer_state, **columns):\n    if trainer_state.global_step == 1:\n        1 / 0\n"
    )
    source += "    return [len(text) / 10 for text in completions]\n"
    ended = trainers.train("stops-working", rewards={"late": source})
    assert "ZeroDivisionError" in failed_with(ended, "grader_failed")
    assert (ended.outcome.step, len(ended.steps)) == (1, 1)


def test_a_reward_that_cannot_be_loaded_is_named(trainers: Trainers) -> None:
    source = "import nothing_of_this_name\n\ndef reward(completion):\n    return 1.0\n"
    run = trainers.lay_out("unloadable")
    run.reward_source("letters").write_text(source)
    ended = trainers.finish(run, trainers.start(run))
    assert "nothing_of_this_name" in failed_with(ended, "grader_failed")
    assert ended.outcome.failure is not None
    assert not ended.outcome.failure.retryable


def test_numbers_that_a_reward_reports_become_metrics(trainers: Trainers) -> None:
    source = "def reward(completions, log_metric, **columns):\n    log_metric('answers', len(completions))\n"
    source += "    return [len(text) / 10 for text in completions]\n"
    ended = trainers.train("reporting", rewards={"length": source}, hyperparameters={"max_steps": 1})
    assert ended.steps[1]["answers"] == 8
