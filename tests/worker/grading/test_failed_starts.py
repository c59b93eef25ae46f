"""Sandboxes that cannot be started leave nothing behind, and the next one that can be is."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.grading import rollout, values
from tests.polling import wait_until
from tests.worker.grading.conftest import descriptors_left
from tests.worker.grading.victim import SUBREAPER
from worker.grading import sandbox
from worker.grading.client import Grader, GraderNotStarted
from worker.grading.memory import MemoryWatch
from worker.grading.probing import probe_source
from worker.grading.process import GradingProcess, OutputTail, ProcessBrokenError

ATTEMPTS = 12


def left_behind() -> list[psutil.Process]:
    """Processes of sandboxes, whatever else the tests of this session have running."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if "bwrap" in words or "worker.grading" in words:
                found.append(process)
    return found


@pytest.fixture(scope="module", autouse=True)
def _orphans_are_ours():
    """What outlives its bwrap is a child of this process then, and `left_behind` sees it."""
    subreaper(1)
    yield
    subreaper(0)


def subreaper(on: int) -> None:
    assert ctypes.CDLL(None, use_errno=True).prctl(SUBREAPER, on, 0, 0, 0) == 0


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("reward") / "reward.py"
    path.write_text("def reward(completion): return len(completion)\n")
    with Grader(path):
        """What is found out once is known from here on."""
    return path


@pytest.mark.parametrize("left", range(0, 16, 2))
def test_start_without_descriptors_is_a_clear_error_and_leaks_none(source, tmp_path, left):
    before, failures = descriptors(), []
    for _ in range(3):
        with descriptors_left(left):
            try:
                GradingProcess(tmp_path, OutputTail()).close()
            except ProcessBrokenError as error:
                failures.append(str(error))
        assert descriptors() == before
    assert all("cannot be started: [Errno 24] Too many open files" in failure for failure in failures)
    assert len(failures) == 3 or left > 6
    wait_until(lambda: left_behind() == [], what="the end of all of them")
    with Grader(source) as grader:
        assert values(grader.grade([rollout("abc")])) == [3.0]


def test_a_process_that_runs_can_be_asked_when_no_descriptor_is_left(source):
    with Grader(source) as grader, descriptors_left(0):
        assert values(grader.grade([rollout("abc")])) == [3.0]


def test_failed_starts_leave_no_descriptor_and_no_process(source, tmp_path, monkeypatch):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    found = sandbox.Sandbox(broken, "0", 0)
    monkeypatch.setattr("worker.grading.process.find_sandbox", lambda: found)
    before = descriptors()
    for _ in range(ATTEMPTS):
        with pytest.raises(ProcessBrokenError, match="bwrap ended with code"):
            GradingProcess(tmp_path, OutputTail())
    assert descriptors() == before
    assert left_behind() == []


@pytest.mark.parametrize("step", ["pidfd_open", "watch", "reader"])
def test_start_that_fails_when_its_process_runs_ends_the_process(source, tmp_path, monkeypatch, step):
    def fail(*arguments, **options):
        raise OSError(24, "Too many open files")

    patched = {
        "pidfd_open": (os, "pidfd_open"),
        "watch": (MemoryWatch, "__init__"),
        "reader": (sandbox, "_read_init_pid"),
    }
    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(*patched[step], fail)
        for _ in range(ATTEMPTS):
            with pytest.raises(ProcessBrokenError, match="Too many open files"):
                GradingProcess(tmp_path, OutputTail())
    assert descriptors() == before
    wait_until(lambda: left_behind() == [], what="the end of all of them")
    GradingProcess(tmp_path, OutputTail()).close()
    assert descriptors() == before


def test_a_start_that_fails_says_nothing_about_the_reward(source):
    with descriptors_left(2), pytest.raises(GraderNotStarted, match="cannot be started"):
        probe_source(source, (), entry_point=None, form=None, deadline_s=10.0)


def test_a_process_that_cannot_be_asked_to_load_says_nothing_about_the_reward(source, monkeypatch):
    def unaskable(*arguments, **options):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(GradingProcess, "_exchange", unaskable)
    with pytest.raises(GraderNotStarted, match="cannot be asked"):
        Grader(source).__enter__()
