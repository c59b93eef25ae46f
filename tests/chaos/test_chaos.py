"""Chaos, the short form."""

import pytest

from bench._chaos.plan import FaultKind
from tests.chaos.chaos import run_chaos


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
