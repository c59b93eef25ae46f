"""Chaos, the short form: the bench as a command, with real processes; and the control that shows that it can fail."""

import json
import subprocess
import sys
from typing import Any

import pytest

from bench._chaos.plan import FaultKind
from core.settings import CHECKOUT


def run_chaos(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report. What went wrong is printed by the bench, and shown by pytest if the test fails."""
    command = [sys.executable, "-m", "bench.chaos", *arguments, "--json"]
    finished = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    assert finished.stdout, "the bench ended without a report: see its standard error"
    return finished.returncode, json.loads(finished.stdout)


@pytest.mark.timeout(2400)
def test_no_job_is_lost_or_run_twice_and_no_checkpoint_loads_badly_under_fifty_faults():
    code, report = run_chaos("--jobs", "60", "--faults", "50", "--seed", "3")
    assert report["violations"] == []
    assert code == 0
    assert report["jobs"] == 60
    assert report["statuses"].keys() <= {"succeeded", "cancelled"}
    struck = {kind: count for kind, count in report["faults_by_kind"].items() if kind in set(FaultKind)}
    assert sum(struck.values()) >= 50, "failpoints come on top"
    assert len(struck) >= 20, "of 24 kinds; one that finds no victim is left out"
    assert report["restores"] > 0


@pytest.mark.timeout(1200)
def test_the_oracle_speaks_when_leases_are_not_fenced():
    """Who wakes behind its lease ends itself at once, fenced or not, so not every run has one that writes before."""
    assert any(stale_writes_without_fencing(seed) for seed in ("1", "2", "3", "4"))


def stale_writes_without_fencing(seed: str) -> int:
    frozen = ("--only", FaultKind.FREEZE_SUPERVISOR, "--only", FaultKind.FREEZE_WORKER)
    code, report = run_chaos("--no-fencing", "--jobs", "12", "--faults", "10", "--seed", seed, *frozen)
    found: int = report["wrong"]["stale write"]
    assert code == (1 if any(report["wrong"].values()) else 0)
    return found
