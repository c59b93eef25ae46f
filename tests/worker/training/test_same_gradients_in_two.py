"""In two processes too the fast path trains as TRL does, though it computes most rollouts in another process; and what
it trains is what TRL would in one.
"""

import os
import socket
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from trl import GRPOTrainer

from tests.worker.training.doubles import double_precision
from tests.worker.training.runs import Trainers
from tests.worker.training.scripted_rollouts import GROUP, Trained, train
from worker.training.fast_path.trainer import FastPathTrainer
from worker.training.team.followers import meeting_place, rank_environment

EQUAL = 1e-12
DEADLINE_S = 600


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


SMALL = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
STRADDLING = {"gradient_accumulation_steps": 2, "steps_per_generation": 3}
CASES = {
    **{
        loss_type: Case(sparse, {"loss_type": loss_type, "max_steps": 3})
        for loss_type in ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "vespo")
    },
    "luspo": Case(sparse, {"loss_type": "luspo", "importance_sampling_level": "sequence", "max_steps": 3}),
    "in the second alone": Case(in_the_second_alone, {"loss_type": "bnpo"}),
    "silent at last": Case(silent_at_last, {"loss_type": "grpo"}),
    "two iterations": Case(sparse, {"num_iterations": 2}),
    "one rollout a pass, activations recomputed": Case(graded, {**SMALL, "gradient_checkpointing": True}),
    "micro-batches that straddle steps": Case(in_the_second_alone, {"loss_type": "grpo", **STRADDLING}),
    "full, as TRL lays it out": Case(graded, {"full": True, "loss_type": "bnpo"}),
    "corrected samples": Case(sparse, {"with_vllm": True}),
}


AS_ONE = ("grpo", "dapo", "dr_grpo", "luspo")
"""Loss types whose divisor does not depend on who computes a rollout, each by another formula of TRL's."""


@pytest.fixture(scope="module")
def folder(trainers: Trainers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where two processes, and one by itself, have left what they found: all cases by the same ones."""
    folder = tmp_path_factory.mktemp("two")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    context = trainers.processes
    processes = [context.Process(target=run_in_two, args=(folder, rank, port)) for rank in range(2)]
    processes.append(context.Process(target=run_in_one, args=(folder,)))
    for process in processes:
        process.start()
    deadline = time.monotonic() + DEADLINE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    assert [process.exitcode for process in processes] == [0, 0, 0], (folder / "log").read_text()
    return folder


@pytest.fixture(scope="module")
def compared(folder: Path) -> dict[str, Compared]:
    found: dict[str, Compared] = torch.load(folder / "compared", weights_only=False)
    return found


def run_in_two(folder: Path, rank: int, port: int) -> None:
    os.environ.update(meeting_place(port, 2), **rank_environment(rank), TORCHELASTIC_USE_AGENT_STORE="False")
    with a_process_of_its_own(folder / str(rank)) as own:
        found = {name: compare(case, own) for name, case in CASES.items()}
        as_one = {loss_type: told(train_as_one(FastPathTrainer, own, loss_type, processes=2)) for loss_type in AS_ONE}
    if rank == 0:
        torch.save(found, folder / "compared")
        torch.save(as_one, folder / "in two")


def run_in_one(folder: Path) -> None:
    with a_process_of_its_own(folder / "alone") as own:
        as_one = {loss_type: told(train_as_one(GRPOTrainer, own, loss_type, processes=1)) for loss_type in AS_ONE}
    torch.save(as_one, folder / "in one")


@contextmanager
def a_process_of_its_own(own: Path) -> Iterator[Path]:
    log = os.open(own.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    torch.set_num_threads(1)
    own.mkdir()
    with double_precision(own):
        yield own


def compare(case: Case, folder: Path) -> Compared:
    theirs = train(GRPOTrainer, folder, reward=case.reward, **case.changes)
    ours = train(FastPathTrainer, folder, reward=case.reward, **case.changes, trainer_arguments={"audit_every": 3})
    tokens = torch.tensor([ours.trainer.gradient_tokens])
    return Compared(
        distance=ours.distance(theirs),
        logs=list(zip(ours.logs, theirs.logs, strict=True)),
        tokens=ours.trainer.accelerator.gather(tokens).tolist(),
    )


def train_as_one(kind: type[GRPOTrainer], folder: Path, loss_type: str, *, processes: int) -> Trained:
    """The same sixteen rollouts in a micro-batch, by however many processes."""
    level = "sequence" if loss_type == "luspo" else "token"
    return train(
        kind,
        folder,
        reward=sparse,
        script=the_same_whoever_asks,
        loss_type=loss_type,
        importance_sampling_level=level,
        per_device_train_batch_size=16 // processes,
    )


def the_same_whoever_asks(texts: list[str], trainer: Any) -> dict[str, Any]:
    """TRL's `rollout_func`: completions that depend on the step, the prompt and the place in the group alone."""
    completions = []
    for place, text in enumerate(texts):
        what = f"{trainer.state.global_step} {text} {place % GROUP}"
        drawn = torch.Generator().manual_seed(zlib.crc32(what.encode()))
        length = int(torch.randint(1, 9, (), generator=drawn))
        completions.append([*torch.randint(3, 64, (length,), generator=drawn).tolist(), 1])
    prompts = [trainer.processing_class(text)["input_ids"] for text in texts]
    return {"prompt_ids": prompts, "completion_ids": completions, "logprobs": None}


def told(trained: Trained) -> Trained:
    """Without its trainer, which another process cannot read."""
    return replace(trained, trainer=None)


@pytest.mark.parametrize("loss_type", AS_ONE)
def test_two_processes_train_what_trl_trains_in_one(folder: Path, loss_type: str) -> None:
    in_two, in_one = (torch.load(folder / name, weights_only=False)[loss_type] for name in ("in two", "in one"))
    assert in_two.distance(in_one) < EQUAL
    assert sum(line["fast/rollouts_skipped"] for line in in_two.logs) > 0
    for ours, theirs in zip(in_two.logs, in_one.logs, strict=True):
        for key in ("loss", "grad_norm", "reward", "num_tokens", "completions/mean_length", "frac_reward_zero_std"):
            assert ours[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-7), key


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
