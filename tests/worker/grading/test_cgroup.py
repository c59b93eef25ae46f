"""Where a sandbox gets a cgroup of its own, and what becomes of it."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.grading import cgroup, memory, sandbox
from worker.grading.cgroup import Cgroup, candidates, folder_for_sandboxes, is_ours_alone, open_controllers
from worker.grading.client import GradeOutcome, Grader, Rollout
from worker.grading.limits import Limits
from worker.grading.process import GradingProcess, OutputTail, ProcessBrokenError

CONSTANT = "def reward(completion): return 1.0\n"
OWN = "0::/machine.slice/podium.service/worker\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A mount of cgroup v2 with a service in it, whose processes stand in a subgroup."""
    for place in ("", "machine.slice", "machine.slice/podium.service", "machine.slice/podium.service/worker"):
        folder = tmp_path / place
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.controllers").write_text("cpu memory pids\n")
        (folder / "cgroup.subtree_control").write_text("")
        (folder / "cgroup.procs").write_text("")
    return tmp_path


def delegate(folder: Path) -> None:
    try:
        os.setxattr(folder, "user.delegate", b"1")
    except OSError:
        pytest.skip("this file system keeps no attributes of users")


def test_nothing_is_taken_that_was_not_given(tree):
    assert list(candidates(tree, OWN, euid=0)) == []
    assert list(candidates(tree, OWN, euid=os.geteuid() + 1)) == []


def test_what_systemd_delegates_is_found_from_the_subgroup_and_from_itself(tree):
    service = tree / "machine.slice/podium.service"
    delegate(service)
    assert list(candidates(tree, OWN, euid=0)) == [service]
    assert list(candidates(tree, "0::/machine.slice/podium.service\n", euid=0)) == [service]


def test_what_belongs_to_a_user_is_theirs(tree):
    owner = tree.stat().st_uid
    found = list(candidates(tree, OWN, euid=owner)) if owner else []
    service = tree / "machine.slice/podium.service"
    assert found == ([service / "worker", service] if owner else [])


def test_the_root_of_a_cgroup_namespace_is_ours_and_the_machines_root_is_not(tree):
    assert not is_ours_alone(tree, tree)
    (tree / "cgroup.type").write_text("domain\n")
    assert is_ours_alone(tree, tree)
    assert list(candidates(tree, "0::/\n", euid=0)) == [tree]


@pytest.mark.parametrize("own", ["4:memory:/a\n", "0::/../elsewhere\n", ""])
def test_version_1_and_places_outside_of_the_mount_are_left_alone(tree, own):
    (tree / "cgroup.type").write_text("domain\n")
    assert list(candidates(tree, own, euid=0)) == []


def test_version_1_beside_version_2_has_no_controllers_to_give(tree):
    (tree / "cgroup.type").write_text("domain\n")
    (tree / "cgroup.controllers").unlink()
    assert list(candidates(tree, "0::/\n", euid=0)) == []


def test_controllers_are_opened_once_the_processes_stand_in_a_leaf(tree):
    service = tree / "machine.slice/podium.service"
    delegate(service)
    assert open_controllers(service, tree)
    assert (service / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert (service / cgroup.LEAF).is_dir()


def test_controllers_that_are_open_are_used_and_nobody_is_moved(tree):
    service = tree / "machine.slice/podium.service"
    (service / "cgroup.subtree_control").write_text("memory pids\n")
    assert open_controllers(service, tree)
    assert not (service / cgroup.LEAF).exists()


def test_without_both_controllers_there_is_nothing_to_open(tree):
    service = tree / "machine.slice/podium.service"
    delegate(service)
    (service / "cgroup.controllers").write_text("cpu pids\n")
    assert not open_controllers(service, tree)


def test_all_bounds_are_written_before_anybody_is_in_it(tmp_path):
    limits = Limits(memory_bytes=123, processes=45)
    made = Cgroup.create(tmp_path, limits)
    made.add(678)
    written = {path.name: path.read_text() for path in made.path.iterdir()}
    assert written == {
        "memory.max": "123",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "45",
        "cgroup.procs": "678",
    }


def test_a_kill_by_the_kernel_is_told_as_such(tmp_path):
    made = Cgroup.create(tmp_path, Limits(memory_bytes=64 * 1024**2))
    assert made.reason is None
    (made.path / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 0\n")
    assert made.reason is None
    (made.path / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 3\noom_group_kill 1\n")
    assert made.reason == "held more than 64 MiB of memory"


@pytest.fixture
def place() -> Iterator[Path]:
    """A cgroup of this machine to make others in, controllers or not."""
    for mount in (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")):
        if (mount / "cgroup.procs").exists() and os.access(mount, os.W_OK):
            folder = mount / f"podium-test-{secrets.token_hex(4)}"
            folder.mkdir()
            yield folder
            folder.rmdir()
            return
    pytest.skip("no cgroup of version 2 here that this user may write to")


def test_the_end_of_a_cgroup_is_the_end_of_everybody_in_it(place):
    folder = place / "podium-sandbox-1-test"
    folder.mkdir()
    made = Cgroup(folder, Limits())
    program = "import os, time\nos.fork()\nos.setsid()\nos.fork()\nprint(1, flush=True)\ntime.sleep(3600)"
    with subprocess.Popen(
        [sys.executable, "-c", f"input()\n{program}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        made.add(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        for _ in range(3):
            process.stdout.readline()
        assert len((folder / "cgroup.procs").read_text().split()) >= 3
        made.end()
        assert process.wait() == -9
    assert not folder.exists()


def test_all_of_a_sandbox_is_in_its_cgroup_from_the_start_and_none_is_left(place, tmp_path, monkeypatch):
    """For real but for the bounds: controllers may be missing where cgroups are not."""
    monkeypatch.setattr(cgroup, "_settings", lambda limits: {})
    monkeypatch.setattr(sandbox, "folder_for_sandboxes", lambda: place)
    source = tmp_path / "reward.py"
    source.write_text(CONSTANT)
    with Grader(source) as grader:
        (folder,) = place.glob("podium-sandbox-*")
        _, *inside = memory.tree(grader.pid)
        assert len(inside) == 2
        assert set(map(int, (folder / "cgroup.procs").read_text().split())) == set(inside)
        assert grader._process.child.accounting is memory.Accounting.CGROUP
        assert grader.grade([Rollout("", "", [], {})])[0].value == 1.0
    assert list(place.glob("podium-sandbox-*")) == []


def test_a_start_that_fails_leaves_no_cgroup(place, tmp_path, monkeypatch):
    monkeypatch.setattr(cgroup, "_settings", lambda limits: {"cgroup.no-such-file": "1"})
    monkeypatch.setattr(sandbox, "folder_for_sandboxes", lambda: place)
    with pytest.raises(ProcessBrokenError, match="cannot be started"):
        GradingProcess(tmp_path, OutputTail())
    assert list(place.glob("podium-sandbox-*")) == []


def test_what_killed_workers_left_is_removed_and_the_living_keep_theirs(place):
    left, kept = place / f"podium-sandbox-{2**22 + 1}-test", place / f"podium-sandbox-{os.getpid()}-test"
    left.mkdir()
    kept.mkdir()
    cgroup._sweep(place)
    assert (left.exists(), kept.exists()) == (False, True)
    kept.rmdir()


def test_memory_of_many_processes_is_bounded_by_the_kernel(tmp_path):
    folder = folder_for_sandboxes()
    if folder is None:
        pytest.skip("no delegated cgroup of version 2 with memory and pids here")
    source = tmp_path / "reward.py"
    source.write_text(
        "import os, time\n"
        "def reward(completion):\n"
        "    if completion == 'bad':\n"
        "        for _ in range(5): os.fork()\n"
        "        held = bytearray(b'x' * 200_000_000)\n"
        "        time.sleep(60)\n"
        "    return 1.0\n"
    )
    with Grader(source) as grader:
        bad, good = grader.grade([Rollout("", "bad", [], {}), Rollout("", "good", [], {})])
        assert bad.outcome is GradeOutcome.INFRASTRUCTURE_ERROR
        assert "MiB of memory" in bad.message
        assert good.value == 1.0
    assert list(folder.glob(f"podium-sandbox-{os.getpid()}-*")) == []
