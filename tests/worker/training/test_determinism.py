"""Killed anywhere, as often as you like: the run that goes on is the run that was never stopped, to the last bit.

The layouts are the hard cases together: gradient accumulation, two optimizer steps for each generation batch, more than
one epoch, dropout, a moving learning rate, evaluations in between, checkpoints less often than steps.
"""

import signal
from typing import Any

import pytest

from tests.worker.training.runs import Ended, Trainers
from worker.audit import tells_time
from worker.run_directory import EvaluationDone

STEPS = 12
LAYOUT: dict[str, Any] = {
    "hyperparameters": {
        "max_steps": STEPS,
        "num_iterations": 2,
        "rollouts_per_pass": 4,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.01,
    },
    "adapter": {"dropout": 0.1},
    "evaluation": {"every_steps": 5, "samples_per_task": 2},
    "checkpoints": {"every_steps": 3, "every_minutes": None},
}
FULL: dict[str, Any] = {
    "hyperparameters": {"max_steps": 6, "learning_rate": 0.001, "beta": 0.1, "rollouts_per_pass": 2},
    "adapter": {"method": "full"},
    "evaluation": {"every_steps": 4},
    "checkpoints": {"every_steps": 2, "every_minutes": None},
}
BATCHES = 3
"""Of one evaluation: greedy and two sampled."""


@pytest.fixture(scope="module")
def unbroken(trainers: Trainers) -> Ended:
    return whole(trainers.train("unbroken", **LAYOUT))


def whole(ended: Ended) -> Ended:
    assert ended.exit_code == 0, ended.log
    return ended


def numbers(attempts: list[Ended]) -> dict[int, dict[str, float | None]]:
    """The metrics of every step, the later attempt's where two did it, without what a clock says."""
    steps = {step: metrics for ended in attempts for step, metrics in ended.steps.items()}
    return {
        step: {name: value for name, value in metrics.items() if not tells_time(name)}
        for step, metrics in steps.items()
    }


def assert_same_run(attempts: list[Ended], unbroken: Ended) -> None:
    *killed, last = attempts
    assert [ended.exit_code for ended in killed] == [-signal.SIGKILL] * len(killed), killed[-1].log
    whole(last)
    assert numbers(attempts) == numbers([unbroken])
    assert last.weights == unbroken.weights
    assert last.evaluation("final").tasks == unbroken.evaluation("final").tasks
    assert last.outcome.summary is not None
    assert unbroken.outcome.summary is not None
    apart = {"phases", "environment"}
    assert last.outcome.summary.model_dump(exclude=apart) == unbroken.outcome.summary.model_dump(exclude=apart)


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_killed_at_any_step(trainers: Trainers, unbroken: Ended, step: int) -> None:
    attempts = trainers.train_killed(f"step-{step}", [f"step.reported@{step}=kill"], **LAYOUT)
    assert_same_run(attempts, unbroken)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(["step.reported@5=kill", "step.reported@4=kill"], id="twice"),
        pytest.param(["step.reported@2=kill", "step.reported@1=kill", "step.reported@8=kill"], id="three times"),
        pytest.param([f"evaluation.batch_done@{BATCHES + 2}=kill"], id="inside the evaluation after step 5"),
        pytest.param(["evaluation.batch_done@2=kill"], id="inside the baseline"),
        pytest.param([f"evaluation.batch_done@{3 * BATCHES + 1}=kill"], id="inside the final evaluation"),
        pytest.param(["save.draft_written@2=kill"], id="inside a save, before it shows"),
        pytest.param(["save.published@2=kill"], id="inside a save, before it is announced"),
    ],
)
def test_killed_at_the_worst_moments(
    trainers: Trainers, unbroken: Ended, faults: list[str], request: pytest.FixtureRequest
) -> None:
    attempts = trainers.train_killed(request.node.callspec.id.replace(" ", "-"), faults, **LAYOUT)
    assert_same_run(attempts, unbroken)


def test_a_fully_trained_model_too(trainers: Trainers) -> None:
    unbroken = whole(trainers.train("unbroken-full", **FULL))
    for step in (1, 3, 4, 6):
        attempts = trainers.train_killed(f"killed-full-{step}", [f"step.reported@{step}=kill"], **FULL)
        assert_same_run(attempts, unbroken)


def test_saves_by_the_clock_change_nothing(trainers: Trainers, unbroken: Ended) -> None:
    """Every step is long past a thousandth of a second."""
    layout = LAYOUT | {"checkpoints": {"every_steps": 100, "every_minutes": 1e-5}}
    attempts = trainers.train_killed("by-the-clock", ["step.reported@9=kill"], **layout)
    assert sorted(step for step in attempts[0].steps) == list(range(1, 10))
    assert min(attempts[1].steps) == 9, "step 8 was saved by the clock"
    *_, last = attempts
    assert last.weights == unbroken.weights


def test_a_checkpoint_does_not_wait_for_the_evaluation_of_its_step(trainers: Trainers, unbroken: Ended) -> None:
    """A kill inside the evaluation costs no step, and one behind it no evaluation: each is taken once."""
    layout = LAYOUT | {"evaluation": {"every_steps": 3, "samples_per_task": 2}}
    inside_that_of_step_3, in_step_7 = f"evaluation.batch_done@{BATCHES + 1}=kill", "step.reported@4=kill"
    first, second, last = trainers.train_killed("both-due", [inside_that_of_step_3, in_step_7], **layout)
    assert [min(ended.steps) for ended in (first, second, last)] == [1, 4, 7]
    taken = [[entry.name for entry in ended.entries(EvaluationDone)] for ended in (first, second, last)]
    assert taken == [["baseline"], ["step-3", "step-6"], ["step-9", "final"]]
    assert whole(last).weights == unbroken.weights
    assert last.outcome.summary is not None
