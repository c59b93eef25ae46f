"""Too many errors pause a run where it stands: nothing of the step is taken, and nothing before it is lost."""

from typing import Any

import pytest

from core.spec import GradingSpec
from tests.worker.training.runs import Ended, Trainers, failed_with
from worker.audit import tells_time
from worker.grading.grades import Grade, GradeOutcome
from worker.run_directory import CheckpointSaved, RolloutsDone
from worker.training.failures import GradingUnreliable
from worker.training.rewards import GradingWatch, Scored

LAYOUT: dict[str, Any] = {
    "hyperparameters": {"max_steps": 6, "num_iterations": 2, "rollouts_per_pass": 4, "lr_scheduler_type": "linear"},
    "adapter": {"dropout": 0.1},
    "evaluation": {"every_steps": 5, "samples_per_task": 2},
    "checkpoints": {"every_steps": 100, "every_minutes": None},
}
GOOD = """\
def reward(completions, trainer_state, **columns):
    return [len(text) / 10 for text in completions]
"""
TRAINING_BATCH, EVALUATION_BATCH = 8, 4


def bad(step: int, count: int, batch: int) -> str:
    """As good as `GOOD`, but for the first `count` of a batch of that size after `step` optimizer steps."""
    return f"""\
def reward(completions, trainer_state, **columns):
    values = [len(text) / 10 for text in completions]
    if trainer_state.global_step == {step} and len(completions) == {batch}:
        values[:{count}] = ["bad"] * {count}
    return values
"""


@pytest.fixture(scope="module")
def clean(trainers: Trainers) -> Ended:
    ended = trainers.train("clean", rewards={"length": GOOD}, **LAYOUT)
    assert ended.exit_code == 0, ended.log
    return ended


def assert_goes_on_as_if_nothing_had_been(trainers: Trainers, paused: Ended, clean: Ended, step: int) -> None:
    failure = paused.outcome.failure
    assert failure is not None
    assert (failure.pauses, paused.outcome.step, max(paused.steps)) == (True, step, step)
    assert [entry.step for entry in paused.entries(CheckpointSaved)] == [step]
    name = f"{paused.run.path.name}-resumed"
    resumed = trainers.train(name, rewards={"length": GOOD}, resume=(paused.run, step), **LAYOUT)
    assert resumed.exit_code == 0, resumed.log
    assert numbers(resumed, after=step) == numbers(clean, after=step)
    assert resumed.weights == clean.weights
    ours, theirs = resumed.outcome.summary, clean.outcome.summary
    assert ours is not None
    assert theirs is not None
    assert ours.model_dump(exclude={"phases", "environment"}) == theirs.model_dump(exclude={"phases", "environment"})


def numbers(ended: Ended, *, after: int) -> dict[int, dict[str, float | None]]:
    return {
        step: {name: value for name, value in metrics.items() if not tells_time(name)}
        for step, metrics in ended.steps.items()
        if step > after
    }


@pytest.mark.parametrize("step", [2, 4], ids=["within an epoch", "at an epoch's end"])
def test_a_step_with_too_many_errors_is_not_taken(trainers: Trainers, clean: Ended, step: int) -> None:
    paused = trainers.train(f"paused-{step}", rewards={"length": bad(step, 2, TRAINING_BATCH)}, **LAYOUT)
    message = failed_with(paused, "grading_unreliable")
    assert f"2 of 8 rollouts of step {step + 1} could not be graded; at most 20% may fail" in message
    assert "returned str, not a number" in message
    last = paused.entries(RolloutsDone)[-1]
    assert (last.step, [rollout.reward is None for rollout in last.rollouts].count(True)) == (step + 1, 2)
    assert_goes_on_as_if_nothing_had_been(trainers, paused, clean, step)


def test_an_evaluation_without_one_reward_pauses_too(trainers: Trainers, clean: Ended) -> None:
    paused = trainers.train("paused-evaluating", rewards={"length": bad(5, 4, EVALUATION_BATCH)}, **LAYOUT)
    assert "No held-out answer could be graded" in failed_with(paused, "grading_unreliable")
    assert_goes_on_as_if_nothing_had_been(trainers, paused, clean, 5)


def test_errors_at_the_first_step_pause_without_a_checkpoint(trainers: Trainers) -> None:
    paused = trainers.train("paused-first", rewards={"length": bad(0, 8, TRAINING_BATCH)}, **LAYOUT)
    failed_with(paused, "grading_unreliable")
    assert (paused.outcome.step, paused.entries(CheckpointSaved)) == (0, [])


def test_a_step_without_any_answer_is_taken_and_teaches_nothing(trainers: Trainers) -> None:
    silent = GOOD.replace("len(text) / 10", "None if trainer_state.global_step == 1 else len(text) / 10")
    ended = trainers.train("silent", rewards={"length": silent}, evaluation={"every_steps": None})
    assert ended.exit_code == 0, ended.log
    assert (ended.steps[2]["grader/no_answer"], ended.steps[2]["grad_norm"], ended.steps[2]["reward"]) == (8, 0, None)


# The rule by itself.


def scored(good: int, errors: int = 0, silent: int = 0) -> list[Scored]:
    grades = [
        *[Grade(GradeOutcome.SCORED, 1.0)] * good,
        *[Grade(GradeOutcome.USER_ERROR, message="oh")] * errors,
        *[Grade(GradeOutcome.NO_ANSWER)] * silent,
    ]
    return [Scored({"a": grade}, grade.value) for grade in grades]


def steps_taken(rule: GradingSpec, *steps: list[Scored]) -> int:
    watch = GradingWatch(rule)
    for number, step in enumerate(steps, 1):
        try:
            watch.check(step, step=number)
        except GradingUnreliable:
            return number - 1
    return len(steps)


GOOD_STEP, BAD_STEP, WORST_STEP, EMPTY_STEP = scored(99, 1), scored(80, 20), scored(79, 21), scored(0, silent=100)


@pytest.mark.parametrize(
    ("steps", "taken"),
    [
        ([GOOD_STEP] * 20, 20),
        ([BAD_STEP] * 4 + [GOOD_STEP] + [BAD_STEP] * 4, 9),
        ([BAD_STEP] * 5, 4),
        ([EMPTY_STEP] * 5, 4),
        ([BAD_STEP, EMPTY_STEP, BAD_STEP, EMPTY_STEP, BAD_STEP], 4),
        ([GOOD_STEP, WORST_STEP], 1),
        ([scored(0, errors=1)], 0),
    ],
)
def test_too_many_errors_or_bad_steps_running_stop_the_run(steps: list[list[Scored]], taken: int) -> None:
    assert steps_taken(GradingSpec(), *steps) == taken


def test_thresholds_are_the_jobs_own() -> None:
    strict = GradingSpec(max_error_share=0, bad_step_error_share=0, max_bad_steps=1)
    assert steps_taken(strict, scored(8), scored(7, 1)) == 1
    assert steps_taken(GradingSpec(max_error_share=0.5, max_bad_steps=2), scored(5, 5), scored(5, 5)) == 1
