"""Failpoints: what an entry says, and what a process that meets one does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from core import failpoints
from core.failpoints import Fault, parse
from core.settings import CHECKOUT
from tests.polling import wait_until

VISIT = """
import sys
from core.failpoints import failpoint
for number in range(int(sys.argv[1])):
    failpoint("here.now")
    print(number, flush=True)
"""


def visit(times: int, entries: str, log: Path | None = None) -> subprocess.Popen[str]:
    """A process that comes by the place `here.now` so often, and says each time that it got over it."""
    environment = os.environ | {failpoints.VARIABLE: entries}
    if log is not None:
        environment[failpoints.LOG_VARIABLE] = str(log)
    return subprocess.Popen(
        [sys.executable, "-c", VISIT, str(times)], env=environment, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    output, _ = process.communicate(timeout=60)
    return process.returncode, output.split()


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("", {}),
        ("a.b=kill", {"a.b": Fault("kill", None, 1.0, 0.0)}),
        ("a_b@3=stop", {"a_b": Fault("stop", 3, 1.0, 0.0)}),
        ("a=30%kill", {"a": Fault("kill", None, 0.3, 0.0)}),
        ("a@2=0.5%sleep:1.5", {"a": Fault("sleep:1.5", 2, 0.005, 1.5)}),
        (" a=kill ,\n b=stop, ", {"a": Fault("kill", None, 1.0, 0.0), "b": Fault("stop", None, 1.0, 0.0)}),
    ],
)
def test_an_entry_names_a_place_a_visit_a_chance_and_an_action(text: str, faults: dict[str, Fault]):
    assert parse(text) == faults


@pytest.mark.parametrize(
    "text", ["a", "a=", "=kill", "a=die", "a=sleep", "a=kill now", "A.B=kill", "a@x=kill", "a=%kill"]
)
def test_what_is_no_entry_is_refused_by_name(text: str):
    with pytest.raises(ValueError, match="is no failpoint") as refused:
        parse(text)
    assert repr(text) in str(refused.value)


def test_a_typo_ends_the_process_instead_of_testing_nothing():
    assert outcome(visit(1, "here.now=kil"))[0] == 1


def test_nothing_happens_where_nothing_is_asked_for():
    assert outcome(visit(2, "elsewhere=kill")) == (0, ["0", "1"])


def test_kill_ends_the_process_at_the_place():
    assert outcome(visit(2, "here.now=kill")) == (-signal.SIGKILL, [])


def test_a_numbered_entry_acts_at_that_visit_only():
    assert outcome(visit(4, "here.now@3=kill")) == (-signal.SIGKILL, ["0", "1"])


def test_stop_freezes_the_process_until_it_is_told_to_go_on():
    process = visit(1, "here.now=stop")
    seen = psutil.Process(process.pid)
    wait_until(lambda: seen.status() == psutil.STATUS_STOPPED, what="it has stopped itself")
    process.send_signal(signal.SIGCONT)
    assert outcome(process) == (0, ["0"])


def test_sleep_holds_the_thread_for_its_time_only(tmp_path: Path):
    log = tmp_path / "log"
    assert outcome(visit(2, "here.now=sleep:0.01", log)) == (0, ["0", "1"])
    assert [line.split()[3] for line in log.read_text().splitlines()] == ["sleep:0.01", "sleep:0.01"]


@pytest.mark.parametrize(("chance", "survives"), [("0%", True), ("100%", False)])
def test_a_chance_of_none_or_all_is_certain(chance: str, survives: bool):
    code, _ = outcome(visit(50, f"here.now={chance}kill"))
    assert (code == 0) is survives


def test_what_is_done_is_logged_before_it_is_done(tmp_path: Path):
    log = tmp_path / "log"
    first, second = visit(2, "here.now@2=kill", log), visit(1, "here.now=kill", log)
    assert (outcome(first)[0], outcome(second)[0]) == (-signal.SIGKILL, -signal.SIGKILL)
    lines = {line.split()[1]: line.split() for line in log.read_text().splitlines()}
    assert lines.keys() == {str(first.pid), str(second.pid)}
    assert all((place, action) == ("here.now", "kill") for _, _, place, action in lines.values())
