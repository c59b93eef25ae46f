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
    lenient = {"max_error_share": 0.99, "bad_step_error_share": 0.99}
    ended = trainers.train("shaky", rewards={"length": LENGTH, "sometimes": SOMETIMES}, grading=lenient)
    assert ended.exit_code == 0, ended.log
    return ended


def test_a_failed_term_blanks_its_rollout_and_is_never_a_zero(shaky: Ended) -> None:
    failed = [rollout for rollout in shaky.rollouts if "a" in rollout.completion]
    assert failed
    for rollout in failed:
        grade = rollout.grades["sometimes"]
        assert (grade.outcome, grade.value, rollout.reward, rollout.advantage) == ("user_error", None, None, 0.0)
        assert grade.error == "ValueError: no letter a, please"
        assert 'File "reward.py", line 3, in reward' in (grade.traceback or "")
        assert grade.latency_s is not None
        assert 1 <= rollout.row <= 5
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


def test_grading_is_counted_and_timed_at_every_step(shaky: Ended) -> None:
    for entry in shaky.entries(RolloutsDone):
        failed = sum(rollout.reward is None for rollout in entry.rollouts)
        metrics = shaky.steps[entry.step]
        assert metrics["grader/user_errors"] == failed
        assert metrics["grader/error_share"] == failed / len(entry.rollouts)
        assert (metrics["grader/infrastructure_errors"], metrics["grader/timeouts"]) == (0, 0)
        assert 0 < (metrics["grader/latency_mean_s"] or 0) <= (metrics["grader/latency_max_s"] or 0)


def test_a_hang_is_a_timeout_and_none_is_no_answer(trainers: Trainers) -> None:
    """The baseline takes 8 calls, and each step 8 more."""
    source = """
calls = []
def reward(completion):
    calls.append(1)
    while len(calls) == 18:
        pass
    return None if len(calls) == 10 else 0.5
"""
    ended = trainers.train("hanging", rewards={"hangs": source})
    assert (ended.steps[1]["grader/no_answer"], ended.steps[1]["grader/timeouts"]) == (1, 0)
    assert (ended.steps[2]["grader/infrastructure_errors"], ended.steps[2]["grader/timeouts"]) == (1, 1)
    grade = ended.rollouts[9].grades["hangs"]
    assert (grade.outcome, grade.value, grade.timed_out) == ("infrastructure_error", None, True)
    assert grade.error == "the reward gave no answer within 5 s"


def test_what_a_reward_logs_and_prints_is_shown(trainers: Trainers) -> None:
    source = """
print("loaded")
def reward(completions, trainer_state, log_extra, **columns):
    log_extra("letters", [len(set(text)) for text in completions])
    print("step", trainer_state.global_step)
    return [len(text) / 10 for text in completions]
"""
    ended = trainers.train("printing", rewards={"chatty": source})
    for rollout in ended.rollouts:
        assert rollout.extra == {"letters": len(set(rollout.completion))}
    notices = [notice for notice in ended.entries(Notice) if notice.code == "grader_output"]
    assert [notice.data["step"] for notice in notices] == [0, 3]
    assert notices[0].data["output"].startswith("loaded\nstep 0\n")
    assert notices[1].data["output"].endswith("step 2\nstep 3\nstep 3\n")
    assert notices[1].message == "Reward `chatty` wrote: step 3"
