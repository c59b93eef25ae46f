"""`podium up` as a user starts it: a real process with real servers, and what is left after every kind of end."""

import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import psutil
import pytest

from cli.data_folder import Connection, DataFolder
from tests.ports import free_port

PODIUM = Path(sys.executable).with_name("podium")
WAIT_S = 120.0
WORKERS = ("worker.dispatcher", "worker.main", "worker.grading_tasks.main", "worker.exports.main")
MODULES = ("app.main:create_app", *WORKERS)


class Up:
    """One `podium up` process on a data folder."""

    def __init__(self, folder: DataFolder, *options: str, env=None, terminal: int | None = None) -> None:
        self.folder = folder
        self.output = folder.root.parent / f"up-{time.monotonic_ns()}.log"
        with self.output.open("wb") as output:
            command = [PODIUM, "up", "--data", folder.root, *options]
            self.process = psutil.Popen(command, stdout=terminal or output, stderr=subprocess.STDOUT, env=env)

    def ready(self) -> Connection:
        """What this process wrote; a file that a killed one left does not count."""
        wait_until(lambda: self._connection() is not None or self.process.poll() is not None)
        connection = self._connection()
        assert connection is not None, self.said()
        return connection

    def family(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)

    def child(self, words: str) -> psutil.Process:
        return next(process for process in self.process.children() if words in command_line(process))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.process.wait(WAIT_S)

    def said(self) -> str:
        return self.output.read_text()

    def _connection(self) -> Connection | None:
        connection = self.folder.read_connection()
        return connection if connection is not None and connection.pid == self.process.pid else None


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.ZombieProcess, psutil.NoSuchProcess):
        return ""


def assert_gone(family: list[psutil.Process]) -> None:
    assert family, "nothing ran"
    _, alive = psutil.wait_procs(family, timeout=WAIT_S)
    assert [command_line(process) for process in alive] == []


def answers(connection: Connection) -> bool:
    try:
        return httpx.get(f"{connection.url}/readyz", timeout=2.0).status_code == 200
    except httpx.TransportError:
        return False


def upload(connection: Connection) -> str:
    row = b'{"prompt": "one", "answer": "1"}\n'
    answer = httpx.post(
        f"{connection.url}/v1/files",
        headers={"Authorization": f"Bearer {connection.api_key}"},
        data={"purpose": "fine-tune"},
        files={"file": ("rows.jsonl", row * 2)},
        timeout=30.0,
    )
    answer.raise_for_status()
    return answer.json()["id"]


def file_exists(connection: Connection, file_id: str) -> bool:
    headers = {"Authorization": f"Bearer {connection.api_key}"}
    return httpx.get(f"{connection.url}/v1/files/{file_id}", headers=headers, timeout=30.0).status_code == 200


@pytest.fixture(scope="module")
def folder() -> Iterator[DataFolder]:
    """One data folder for the module: every test starts a podium on what the tests before it left."""
    with TemporaryDirectory(prefix="podium-test-") as root:
        yield DataFolder(Path(root) / "data")


@pytest.fixture
def up(folder: DataFolder) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*options: str, **how) -> Up:
        started.append(Up(folder, *options, **how))
        return started[-1]

    yield start
    for podium in started:
        if podium.process.is_running():
            podium.stop(signal.SIGKILL)


def test_up_is_ready_on_its_port_and_sigterm_leaves_nothing(folder, up):
    port = free_port()
    podium = up("--port", str(port))
    connection = podium.ready()
    assert connection.url == f"http://127.0.0.1:{port}"
    assert answers(connection)
    assert stat.S_IMODE(folder.connection.stat().st_mode) == 0o600
    assert connection.api_key in podium.said()

    family = podium.family()
    assert all(any(module in command_line(process) for process in family) for module in MODULES)
    assert podium.stop() == 0
    assert_gone(family)
    assert not folder.connection.exists()


def test_ctrl_c_ends_with_success_and_the_next_start_has_the_same_key_and_data(up):
    podium = up("--port", "0")
    first = podium.ready()
    file_id = upload(first)
    assert podium.stop(signal.SIGINT) == 0

    again = up("--port", "0").ready()
    assert again.api_key == first.api_key
    assert file_exists(again, file_id)


def test_a_killed_podium_leaves_no_process_and_the_next_start_works(up):
    podium = up("--port", "0")
    connection = podium.ready()
    file_id = upload(connection)
    family = podium.family()
    podium.stop(signal.SIGKILL)
    assert_gone(family)

    assert file_exists(up("--port", "0").ready(), file_id)


def test_a_second_ctrl_c_ends_everything_at_once(up):
    podium = up("--port", "0")
    podium.ready()
    family = podium.family()
    podium.process.send_signal(signal.SIGINT)
    wait_until(lambda: "Stopping" in podium.said())
    assert podium.stop(signal.SIGINT) == 0
    assert_gone(family)


def test_a_closed_terminal_stops_everything(up):
    ours, its = pty.openpty()
    podium = up("--port", "0", terminal=its)
    os.close(its)
    podium.ready()
    family = podium.family()
    os.close(ours)
    assert podium.stop(signal.SIGHUP) == 0
    assert_gone(family)


def test_a_second_podium_on_the_folder_is_refused_and_names_the_first(up):
    first = up("--port", "0")
    connection = first.ready()
    second = up("--port", "0")
    assert second.process.wait(WAIT_S) == 1
    assert f"process {first.process.pid}" in second.said()
    assert answers(connection)


def test_a_taken_port_is_refused_when_it_was_asked_for(up):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        podium = up("--port", str(taken.getsockname()[1]))
        assert podium.process.wait(WAIT_S) == 1
    assert "taken" in podium.said()
    assert "fix:" in podium.said()


def test_killed_programs_are_started_again(up):
    podium = up("--port", "0")
    connection = podium.ready()
    victims = [podium.child(module) for module in MODULES]
    for victim in victims:
        victim.kill()

    def replaced(module: str) -> bool:
        return any(module in command_line(child) and child not in victims for child in podium.process.children())

    wait_until(lambda: all(map(replaced, MODULES)))
    wait_until(lambda: answers(connection))
    assert podium.said().count("SIGKILL") == len(MODULES)


def test_a_grader_is_tried_by_the_stacks_own_grading_worker(up):
    connection = up("--port", "0").ready()
    grader = {"type": "python", "source": "def grade(sample, item):\n    return 0.5\n"}

    def reward() -> float | None:
        answer = httpx.post(
            f"{connection.url}/v1/fine_tuning/alpha/graders/run",
            headers={"Authorization": f"Bearer {connection.api_key}"},
            json={"grader": grader, "model_sample": "4"},
            timeout=30.0,
        )
        return answer.json()["reward"] if answer.is_success else None  # 503 until it has started

    wait_until(lambda: reward() == 0.5)


def test_an_api_that_cannot_start_is_told_with_its_last_lines(up):
    podium = up("--port", "0", env=os.environ | {"UVICORN_LOG_LEVEL": "nonsense"})
    assert podium.process.wait(WAIT_S) == 1
    assert "nonsense" in podium.said()
    assert "logs/api.log" in podium.said()


def test_settings_that_cannot_be_used_are_named_before_anything_starts(up):
    podium = up("--port", "0", env=os.environ | {"PODIUM_MAX_BODY_BYTES": "none"})
    assert podium.process.wait(WAIT_S) == 1
    assert "error: PODIUM_MAX_BODY_BYTES: " in podium.said()
    assert "fix: " in podium.said()
