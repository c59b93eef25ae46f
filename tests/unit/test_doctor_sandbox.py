"""What `podium doctor` makes of the sandbox's report."""

import pytest

from cli.doctor import Health, _sandbox, _sandbox_finding
from core.settings import Settings

SETTINGS = Settings(_env_file=None)
GOOD = {
    "version": "0.11.0",
    "landlock": 7,
    "memory_bytes": 2 * 1024**3,
    "libraries": ["numpy 2.4"],
    "missing": [],
    "counts_processes": True,
    "accounting": "shared_once",
    "counts_files": True,
}


def test_this_machine_is_asked_for_real():
    finding = _sandbox(SETTINGS)
    assert finding.health in {Health.OK, Health.WARN}, finding
    assert "bubblewrap" in finding.what


@pytest.mark.parametrize(
    ("report", "health", "words"),
    [
        (GOOD, Health.OK, "Landlock 7"),
        (GOOD, Health.OK, "memory watched;"),
        ({**GOOD, "accounting": "cgroup"}, Health.OK, "memory bounded by a cgroup each"),
        ({**GOOD, "accounting": "resident"}, Health.OK, "shared pages once for each process"),
        ({**GOOD, "accounting": "resident", "counts_files": False}, Health.WARN, "files in /tmp are not counted"),
        ({**GOOD, "landlock": 0}, Health.WARN, "no Landlock"),
        ({**GOOD, "counts_processes": False}, Health.WARN, "count processes"),
        ({**GOOD, "missing": ["math-verify"]}, Health.WARN, "cannot import math-verify"),
        ({"error": "cannot be isolated", "fix": "do this"}, Health.FAIL, "cannot be isolated"),
    ],
)
def test_each_missing_part_is_named(report, health, words):
    finding = _sandbox_finding(report, SETTINGS)
    assert (finding.health, words in finding.what) == (health, True), finding
    assert (finding.fix is None) == (health is Health.OK)


def test_switched_off_sandbox_is_a_warning():
    finding = _sandbox_finding(GOOD, Settings(_env_file=None, run_reward_code_without_sandbox=True))
    assert finding.health is Health.WARN
    assert "PODIUM_RUN_REWARD_CODE_WITHOUT_SANDBOX" in finding.what
