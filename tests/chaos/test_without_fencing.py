"""The negative control: chaos without fencing must be seen. A file of its own, to run beside the other."""

import pytest

from bench._chaos.plan import FaultKind
from tests.chaos.chaos import run_chaos


@pytest.mark.timeout(1200)
def test_the_oracle_speaks_when_leases_are_not_fenced():
    """Any of the seeds will do: whether a frozen supervisor still has something to write is chance."""
    assert any(stale_writes_without_fencing(seed) for seed in ("1", "2", "3", "4"))


def stale_writes_without_fencing(seed: str) -> int:
    frozen = ("--only", FaultKind.FREEZE_SUPERVISOR, "--only", FaultKind.FREEZE_WORKER)
    code, report = run_chaos("--no-fencing", "--jobs", "12", "--faults", "10", "--seed", seed, *frozen)
    found: int = report["wrong"]["stale write"]
    assert code == (1 if any(report["wrong"].values()) else 0)
    return found
