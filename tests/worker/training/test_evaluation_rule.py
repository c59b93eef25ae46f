"""An evaluation in which too many answers met an error ranks nowhere, and no verdict is taken on it."""

from typing import Any

from tests.worker.training.runs import Ended, Trainers, failed_with
from tests.worker.training.test_grading_rule import EVALUATION_BATCH, GOOD, bad
from worker.run_directory import CheckpointSaved, EvaluationDone, Notice

LAYOUT: dict[str, Any] = {
    "hyperparameters": {"max_steps": 4, "rollouts_per_pass": 4},
    "evaluation": {"every_steps": 2, "samples_per_task": 1},
    "checkpoints": {"every_steps": 100, "every_minutes": None},
}
ONE_OF_FOUR, TWO_OF_FOUR = 1, 2


def evaluations(ended: Ended) -> list[str]:
    return [entry.name for entry in ended.entries(EvaluationDone)]


def test_a_final_evaluation_with_too_many_errors_pauses_and_is_taken_again(trainers: Trainers) -> None:
    paused = trainers.train("unjudged", rewards={"length": bad(4, TWO_OF_FOUR, EVALUATION_BATCH)}, **LAYOUT)
    message = failed_with(paused, "grading_unreliable")
    assert "2 of 4 greedy answers of the final evaluation could not be graded; at most 20% may fail." in message
    assert "returned str, not a number" in message
    assert paused.outcome.failure is not None
    assert paused.outcome.failure.pauses
    assert (evaluations(paused), paused.run.read_evaluation("final")) == (["baseline", "step-2"], None)
    resumed = trainers.train("judged", rewards={"length": GOOD}, resume=(paused.run, 4), **LAYOUT)
    assert resumed.exit_code == 0, resumed.log
    assert evaluations(resumed) == ["final"]


def test_a_baseline_with_too_many_errors_pauses_before_anything_is_trained(trainers: Trainers) -> None:
    paused = trainers.train("unfounded", rewards={"length": bad(0, TWO_OF_FOUR, EVALUATION_BATCH)}, **LAYOUT)
    assert "2 of 4 greedy answers of the baseline evaluation" in failed_with(paused, "grading_unreliable")
    assert (evaluations(paused), paused.steps) == ([], {})


def test_a_baseline_that_an_earlier_version_kept_all_the_same_is_taken_again(trainers: Trainers) -> None:
    lenient = {**LAYOUT, "grading": {"max_error_share": 0.9}}
    first = trainers.train("lenient", rewards={"length": bad(0, TWO_OF_FOUR, EVALUATION_BATCH)}, **lenient)
    assert first.exit_code == 0, first.log
    again = trainers.train("strict", rewards={"length": GOOD}, baseline=first.run, **LAYOUT)
    assert evaluations(again)[0] == "baseline"


def test_an_evaluation_on_the_way_with_too_many_errors_is_kept_and_cannot_be_the_best(trainers: Trainers) -> None:
    high = bad(2, TWO_OF_FOUR, EVALUATION_BATCH).replace("len(text) / 10", "1000 * (trainer_state.global_step == 2)")
    ended = trainers.train("unranked", rewards={"length": high}, **LAYOUT)
    assert ended.exit_code == 0, ended.log
    assert ended.outcome.summary is not None
    assert ended.outcome.summary.best_evaluation == "baseline"
    assert not any(entry.is_best for entry in ended.entries(CheckpointSaved))
    kept = ended.evaluation("step-2")
    assert sum(answer.error is not None for answer in kept.answers("greedy")) == TWO_OF_FOUR
    (notice,) = [entry for entry in ended.entries(Notice) if entry.code == "evaluation_errors"]
    assert (notice.data["errors"], notice.data["ranked"]) == (4, False)


def test_few_errors_leave_an_evaluation_its_rank(trainers: Trainers) -> None:
    layout = {**LAYOUT, "grading": {"max_error_share": 0.25}}
    high = bad(2, ONE_OF_FOUR, EVALUATION_BATCH).replace("len(text) / 10", "1000 * (trainer_state.global_step == 2)")
    ended = trainers.train("ranked", rewards={"length": high}, **layout)
    assert ended.exit_code == 0, ended.log
    assert ended.outcome.summary is not None
    assert ended.outcome.summary.best_evaluation == "step-2"
