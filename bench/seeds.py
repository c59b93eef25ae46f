"""The demo job with one seed after another: what it learns, what the verdict says, and which findings are false alarms.

    podium bench seeds [--seeds N] [--first SEED] [--steps N] [--json]

Every run is healthy, so a finding that is graver than a remark is a false alarm. The verdict of each is that of its own
`results.json`.
"""

import argparse
import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import _demo_job
from bench._table import show
from cli.client import Client
from cli.data_folder import DataFolder
from cli.example import Uploads, job_spec
from cli.stack import running_stack
from core.results import JobResults


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench seeds")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--steps", type=int, help="unset: as many as the demo has")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = _run(Path(folder), range(arguments.first, arguments.first + arguments.seeds), arguments.steps)
    show("seeds", rows, as_json=arguments.json)


def _run(folder: Path, seeds: range, steps: int | None) -> list[dict[str, Any]]:
    rows = []
    with running_stack(DataFolder(folder / "data"), port=0, say=_demo_job.quiet) as (stack, connection):
        client = Client(connection.url, connection.api_key)
        uploads = _demo_job.upload(client)
        for seed in seeds:
            rows.append(_row(seed, _results(client, _spec(uploads, seed, steps))))
            print(f"seed {seed}: {rows[-1]['outcome']}", file=sys.stderr, flush=True)
            stack.tend()
    return rows


def _spec(uploads: Uploads, seed: int, steps: int | None) -> dict[str, Any]:
    spec = copy.deepcopy(job_spec(uploads))
    spec["seed"] = seed
    if steps is not None:
        spec["method"]["grpo"]["hyperparameters"]["max_steps"] = steps
    return spec


def _results(client: Client, spec: dict[str, Any]) -> JobResults:
    return JobResults.model_validate_json(client.results(_demo_job.run(client, spec).id))


def _row(seed: int, results: JobResults) -> dict[str, Any]:
    verdict, findings = results.verdict, results.diagnostics.findings
    alarms = [finding.code for finding in findings if finding.severity != "info"]
    return {
        "seed": seed,
        "baseline": results.baseline.greedy.passed,
        "final": results.final.greedy.passed,
        "tasks": verdict.tasks,
        "fixed": verdict.fixed,
        "broken": verdict.broken,
        "p": f"{verdict.p_value:.1e}" if verdict.p_value is not None else "-",
        "outcome": verdict.outcome,
        "remarks": ", ".join(finding.code for finding in findings if finding.severity == "info") or "-",
        "false_alarms": ", ".join(alarms) or "-",
    }


if __name__ == "__main__":
    main()
