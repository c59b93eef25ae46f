"""Each engine in a process of its own: what vLLM sets up in one is there once, and goes with it."""

import multiprocessing
import os
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

SCENES = "tests.vllm.scenes"
DEADLINE_S = 1500
"""Much of it is for a machine that is busy with other things."""
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
}


def open_processes() -> ForkServerContext:
    """Forked from a server that has imported vLLM once, which is what takes an engine its time."""
    os.environ |= ENVIRONMENT
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["worker.training.job", SCENES])
    return processes


def run_in(processes: ForkServerContext, scene: str, *arguments: Any) -> Any:
    """What the scene returns. Its traceback is the failure's message."""
    here, there = processes.Pipe()
    child = processes.Process(target=_answer, args=(there, scene, arguments))
    child.start()
    there.close()
    try:
        assert here.poll(DEADLINE_S), "the process hangs"
        worked, answer = here.recv()
    except EOFError:
        child.join()
        raise AssertionError(f"the process ended with {child.exitcode}") from None
    finally:
        child.kill()
        child.join()
    assert worked, answer
    return answer


def play(scene: str, *arguments: Any) -> Any:
    """A function of `scenes`, by its name: importing it here takes vLLM a minute, and its warnings end pytest."""
    import torch

    from tests.vllm.cpu_shim import keep_weights_plain

    torch.set_num_threads(1)
    keep_weights_plain()
    return getattr(import_module(SCENES), scene)(*arguments)


def _answer(connection: Connection, scene: str, arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((True, play(scene, *arguments)))
    except Exception:  # noqa: BLE001 - whatever it is, the test shows it
        connection.send((False, traceback.format_exc()))
