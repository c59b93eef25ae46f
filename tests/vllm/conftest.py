"""Toys and processes for the tests against the real vLLM (`podium test --vllm`)."""

from collections.abc import Callable
from functools import partial
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.processes import DEADLINE_S, open_processes, run_in
from tests.worker.training.runs import Trainers


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    return open_processes()


@pytest.fixture(scope="session")
def model(processes: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "toy"
    run_in(processes, "save_model_for_vllm", folder)
    return folder


@pytest.fixture
def aside(processes: ForkServerContext) -> Callable[..., Any]:
    """Play a scene in a process of its own."""
    return partial(run_in, processes)


@pytest.fixture(scope="session")
def trainers(processes: ForkServerContext, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainers:
    return Trainers(tmp_path_factory.mktemp("trainer"), model, processes, deadline_s=DEADLINE_S)
