"""A sandbox whose bwrap was killed before it could begin, and the sweep that ends it and nothing else."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.polling import wait_until
from worker.grading import orphans, sandbox
from worker.grading.client import Grader, Rollout
from worker.grading.limits import Limits
from worker.grading.sandbox import find_sandbox


@pytest.fixture
def begun() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A bwrap that waits between making init and letting it go on, and that init: nobody reads what it has to say."""
    bwrap = find_sandbox().bwrap
    reader, writer = os.pipe()
    fill(writer)
    with sandbox._seccomp_filter() as program:
        command = sandbox._command(bwrap, program, sandbox._python("main"), Limits(), {"--info-fd": writer})
        process = subprocess.Popen(command, env={}, cwd="/", pass_fds=[program, writer])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: bool(children.read_text()), what="bwrap has made init")
    init = int(children.read_text())
    yield process, init
    with suppress(ProcessLookupError):
        os.kill(init, signal.SIGKILL)
    process.kill()
    process.wait()
    os.close(reader)
    os.close(writer)


def fill(pipe: int) -> None:
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(pipe, b" " * 4096)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags)


def lives(pid: int) -> bool:
    return orphans._status(pid).get("State", "Z")[0] != "Z"


def test_an_init_without_its_bwrap_is_killed(begun):
    process, init = begun
    process.kill()
    process.wait()
    assert lives(init), "it would wait for ever"
    orphans.sweep()
    wait_until(lambda: not lives(init), what="the orphan ended")


def test_an_init_whose_bwrap_lives_is_left_alone(begun):
    process, init = begun
    orphans.sweep()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    assert lives(init)


def test_a_sandbox_at_work_is_left_alone(tmp_path):
    source = tmp_path / "reward.py"
    source.write_text("def reward(completion): return 1.0")
    with Grader(source) as grader:
        pid = grader.pid
        orphans.sweep()
        assert grader.grade([Rollout("", "", [], {})])[0].value == 1.0
        assert (grader.pid, grader.restarts) == (pid, 0)


def test_a_process_may_call_itself_what_it_likes() -> None:
    """As a reward may, which would otherwise keep the machine's supervisors from starting."""
    name = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\\xff\\xfebwrap'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as named:
        assert named.stdout is not None
        named.stdout.readline()
        orphans.sweep()
        assert named.poll() is None
