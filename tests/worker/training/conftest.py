"""The trainers, and the runs that several files look at."""

from collections.abc import Iterator

import pytest

from tests.worker.training.runs import Ended, Trainers, open_trainers


@pytest.fixture(scope="session")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainers]:
    with open_trainers(tmp_path_factory.mktemp("trainer")) as trainers:
        yield trainers


@pytest.fixture(scope="session")
def plain(trainers: Trainers) -> Ended:
    """LoRA on text prompts, two passes a step, over three epochs of two steps."""
    ended = trainers.train(
        "plain",
        hyperparameters={"max_steps": 6, "rollouts_per_pass": 4},
        evaluation={"every_steps": 2, "samples_per_task": 2},
        checkpoints={"every_steps": 1},
    )
    assert ended.exit_code == 0, ended.log
    return ended


@pytest.fixture(scope="session")
def full(trainers: Trainers) -> Ended:
    ended = trainers.train("full", adapter={"method": "full"}, hyperparameters={"learning_rate": 0.001})
    assert ended.exit_code == 0, ended.log
    return ended
