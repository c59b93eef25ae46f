"""The bench as a command, with real processes."""

import json
import subprocess
import sys
from typing import Any

from core.settings import CHECKOUT


def run_chaos(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report. What went wrong is printed by the bench, and shown by pytest if the test fails."""
    command = [sys.executable, "-m", "bench.chaos", *arguments, "--json"]
    finished = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=False)
    assert finished.stdout, "the bench ended without a report: see its standard error"
    return finished.returncode, json.loads(finished.stdout)
