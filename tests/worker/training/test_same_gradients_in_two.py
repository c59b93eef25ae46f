"""In two processes too the fast path trains as TRL does, though it computes most rollouts in another process."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from tests.worker.training.doubles import double_precision
from tests.worker.training.runs import Trainers
from tests.worker.training.scripted_rollouts import train
from worker.training.fast_path.trainer import FastPathTrainer
from worker.training.team.followers import meeting_place, rank_environment

EQUAL = 1e-12
DEADLINE_S = 250


@dataclass(frozen=True)
class Case:
    reward: Any
    changes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compared:
    """What the first process found; the second holds the same weights."""

    distance: float
    logs: list[tuple[dict[str, Any], dict[str, Any]]]
    """Of each step: ours, TRL's."""
    tokens: list[int]
    """That each process has computed with a gradient."""


def sparse(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [float(sum(completion) % 7 == 3) for completion in completion_ids]


def graded(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    return [float(sum(completion) % 10) for completion in completion_ids]


def in_the_second_alone(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """The first process draws nothing but silent groups."""
    return [float(os.environ["RANK"] == "1" and number == 5) for number in range(len(completion_ids))]


def silent_at_last(completion_ids: Sequence[Sequence[int]], trainer_state: Any, **_: Any) -> list[float]:
    return graded(completion_ids) if trainer_state.global_step < 3 else [1.0] * len(completion_ids)


STRADDLING = {"gradient_accumulation_steps": 2, "steps_per_generation": 3}
CASES = {
    **{
        loss_type: Case(sparse, {"loss_type": loss_type})
        for loss_type in ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "vespo")
    },
    "luspo": Case(sparse, {"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    "in the second alone": Case(in_the_second_alone, {"loss_type": "bnpo"}),
    "silent at last": Case(silent_at_last, {"loss_type": "grpo"}),
    "two iterations": Case(sparse, {"num_iterations": 2}),
    "one rollout a pass": Case(graded, {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}),
    "micro-batches that straddle steps": Case(in_the_second_alone, {"loss_type": "grpo", **STRADDLING}),
    "full, as TRL lays it out": Case(graded, {"full": True, "loss_type": "bnpo"}),
    "corrected samples": Case(sparse, {"with_vllm": True}),
}


@pytest.fixture(scope="module")
def compared(trainers: Trainers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Compared]:
    """All cases by the same two processes."""
    folder = tmp_path_factory.mktemp("two")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    context = trainers.processes
    processes = [context.Process(target=run_cases, args=(rank, port, folder)) for rank in range(2)]
    for process in processes:
        process.start()
    deadline = time.monotonic() + DEADLINE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    assert [process.exitcode for process in processes] == [0, 0], (folder / "log").read_text()
    found: dict[str, Compared] = torch.load(folder / "compared", weights_only=False)
    return found


def run_cases(rank: int, port: int, folder: Path) -> None:
    os.environ.update(meeting_place(port, 2), **rank_environment(rank), TORCHELASTIC_USE_AGENT_STORE="False")
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    own = folder / str(rank)
    own.mkdir()
    with double_precision(own):
        found = {name: compare(case, own) for name, case in CASES.items()}
    if rank == 0:
        torch.save(found, folder / "compared")


def compare(case: Case, folder: Path) -> Compared:
    theirs = train(GRPOTrainer, folder, reward=case.reward, **case.changes)
    ours = train(FastPathTrainer, folder, reward=case.reward, **case.changes, trainer_arguments={"audit_every": 3})
    tokens = torch.tensor([ours.trainer.gradient_tokens])
    return Compared(
        distance=ours.distance(theirs),
        logs=list(zip(ours.logs, theirs.logs, strict=True)),
        tokens=ours.trainer.accelerator.gather(tokens).tolist(),
    )


@pytest.mark.parametrize("name", CASES)
def test_the_weights_are_trls(compared: dict[str, Compared], name: str) -> None:
    found = compared[name]
    assert found.distance < EQUAL
    assert sum(ours["fast/rollouts_skipped"] for ours, _ in found.logs if "fast/rollouts_skipped" in ours) > 0
    for ours, theirs in found.logs:
        for key in theirs.keys() & {"loss", "grad_norm", "reward", "num_tokens"}:
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-7), key


@pytest.mark.parametrize("name", CASES)
def test_an_audit_finds_the_gradients_equal(compared: dict[str, Compared], name: str) -> None:
    errors = [ours["fast/grad_relative_error"] for ours, _ in compared[name].logs if "fast/grad_relative_error" in ours]
    assert errors
    assert max(errors) < EQUAL


def test_work_is_shared_out_whoever_drew_it(compared: dict[str, Compared]) -> None:
    first, second = compared["in the second alone"].tokens
    assert 0.5 < first / second < 2
