"""What the service costs: the demo job's training stage through Podium, against the same job as a bare TRL script.

    podium bench overhead [--steps N] [--pairs N] [--no-fast-path] [--json]

Both run on the same machine in turns (bare, Podium, Podium, bare, ...), with the whole local stack up all the time;
the figure is the median over the pairs of Podium's seconds divided by the bare script's. Both save every 25 steps.
`--no-fast-path` leaves TRL all its passes: what is left of the difference is the service alone.
"""

import argparse
import copy
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import _demo_job
from bench._table import show
from cli.client import Client
from cli.data_folder import DataFolder
from cli.example import HELDOUT, job_spec
from cli.stack import running_stack
from core.settings import CHECKOUT

GOAL = 1.05
FEW_TASKS = 10
"""Evaluations are not measured here, only waited for."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench overhead")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--no-fast-path", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = _measure(Path(folder), arguments.steps, arguments.pairs, fast_path=not arguments.no_fast_path)
    show("overhead", rows, as_json=arguments.json)


def _measure(folder: Path, steps: int, pairs: int, *, fast_path: bool) -> list[dict[str, Any]]:
    bare: list[float] = []
    podium: list[float] = []
    with running_stack(DataFolder(folder / "data"), port=0, say=_demo_job.quiet) as (stack, connection):
        client = Client(connection.url, connection.api_key)
        spec = _spec(client, folder, steps, fast_path=fast_path)
        for pair in range(pairs):
            if pair % 2 == 0:
                bare.append(_run_bare(steps, folder))
            podium.append(_run_job(client, spec))
            if pair % 2 == 1:
                bare.append(_run_bare(steps, folder))
            print(f"pair {pair + 1}: bare {bare[-1]:.1f} s, Podium {podium[-1]:.1f} s", file=sys.stderr, flush=True)
            stack.tend()
    ratios = [ours / theirs for ours, theirs in zip(podium, bare, strict=True)]
    return [
        {
            "steps": steps,
            "pairs": pairs,
            "fast_path": fast_path,
            "bare_median_s": round(statistics.median(bare), 2),
            "podium_median_s": round(statistics.median(podium), 2),
            "ratio_median": round(statistics.median(ratios), 3),
            "ratio_min": round(min(ratios), 3),
            "ratio_max": round(max(ratios), 3),
            "goal": GOAL,
            "met": statistics.median(ratios) <= GOAL,
        }
    ]


def _spec(client: Client, folder: Path, steps: int, *, fast_path: bool) -> dict[str, Any]:
    """The demo job with `steps` steps and no evaluation in between: the bare script has none."""
    few = folder / HELDOUT.name
    few.write_text("".join(HELDOUT.read_text().splitlines(keepends=True)[:FEW_TASKS]))
    spec = copy.deepcopy(job_spec(_demo_job.upload(client, few)))
    spec["method"]["grpo"]["hyperparameters"] |= {"max_steps": steps, "fast_path": fast_path}
    spec["method"]["grpo"]["evaluation"]["every_steps"] = None
    return spec


def _run_bare(steps: int, folder: Path) -> float:
    with tempfile.TemporaryDirectory(dir=folder) as output:
        command = [sys.executable, "-m", "bench._bare_trl", str(steps), output]
        finished = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return float(finished.stdout.splitlines()[-1])


def _run_job(client: Client, spec: dict[str, Any]) -> float:
    """Seconds between the trainer's own lines at the begin and the end of its training stage."""
    job = _demo_job.run(client, spec)
    stages = {event.code: float(event.data["at"]) for event in client.events(job.id) if event.code.startswith("stage_")}
    return stages["stage_evaluating"] - stages["stage_training"]


if __name__ == "__main__":
    main()
