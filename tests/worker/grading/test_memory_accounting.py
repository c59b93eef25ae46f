"""How the memory of a sandbox is counted where the kernel tells the worker less, and that it is said."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.settings import CHECKOUT
from tests.worker.grading.conftest import as_user
from worker.grading.cgroup import folder_for_sandboxes
from worker.grading.limits import Limits
from worker.grading.memory import Accounting, MemoryWatch
from worker.grading.probe import report

BOMB = """
import json, tempfile
from pathlib import Path
from worker.grading.client import Grader, Rollout
from worker.grading.probe import report
SOURCE = '''
import os, time
def reward(completion):
    if completion == "bad":
        for _ in range(3): os.fork()
        held = bytearray(b"x" * 120_000_000)
        time.sleep(60)
    return 1.0
'''
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "reward.py")
    path.write_text(SOURCE)
    with Grader(path, item_deadline_s=30) as grader:
        grades = grader.grade([Rollout("", "bad", [], {}), Rollout("", "good", [], {})])
        print(json.dumps([report(), [grade.message or grade.value for grade in grades]]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a rootless worker may trace its sandboxes: they are its own user's")
def test_without_the_right_to_trace_memory_is_bounded_all_the_same():
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("there is no setpriv(1) here")
    if folder_for_sandboxes() is not None:
        pytest.skip("the kernel counts here")
    ended = subprocess.run(
        [setpriv, "--bounding-set", "-sys_ptrace", sys.executable, "-c", BOMB],
        env={**os.environ, "PODIUM_REWARD_MEMORY_BYTES": str(384 * 1024**2)},
        cwd=CHECKOUT,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    found, (bad, good) = json.loads(ended.stdout.splitlines()[-1])
    assert found["accounting"] in set(Accounting) - {Accounting.CGROUP}  # newer kernels ask for less than that right
    assert not found["counts_files"]
    assert "held more than 384 MiB of memory" in bad
    assert good == 1.0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users")
def test_processes_that_may_not_be_traced_count_with_all_that_is_resident():
    program = f"""
from worker.grading import memory
pid = {os.getpid()}
print(memory.accounting(pid), memory.counts_files(pid), memory._share_bytes(pid) == memory._resident_bytes(pid) > 0)
"""
    ended = subprocess.run(
        as_user("rootless", [sys.executable, "-c", program]), cwd=CHECKOUT, check=False, capture_output=True, text=True
    )
    assert ended.stdout == "resident False True\n", ended.stderr


def test_this_machines_accounting_is_reported():
    found = report()
    wanted = Accounting.SHARED_ONCE if folder_for_sandboxes() is None else Accounting.CGROUP
    assert (found["accounting"], found["counts_files"]) == (wanted, True)


def test_memory_that_cannot_be_seen_is_not_taken_for_none():
    gone = 2**22 + 1
    assert not Path(f"/proc/{gone}").exists()
    with pytest.raises(OSError, match="No such file"):
        MemoryWatch(gone, -1, Limits())
