"""Seconds to a score: one task, one reward, with TRL's passes, with Podium's, and with each sampling option on top.

    podium bench sampling [--rounds N] [--steps N] [--every N] [--score X]... [--tasks N] [--json]

In each round every case runs once, with the same seed, and another case goes first. The task is the demo's with a
reward that gives all or nothing, so that many groups are silent. `seconds` are those of training steps, evaluations and
checkpoints left out, up to the first evaluation (one every N steps) whose greedy answers reach the score. `ratio` is
against the case `podium` of the same round: below 1 is sooner. A score that was missed in one round has no figures.
`final` is the held-out score at the end, `bill_s` the seconds of all steps, `wasted_s` those of them that bought no
gradient (`diagnostics.taught.bill`): medians over the rounds, the same at every score.
"""

import argparse
import copy
import csv
import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench import _demo_job
from bench._table import show
from cli.client import Client
from cli.data_folder import DataFolder
from cli.example import HELDOUT, job_spec
from cli.stack import running_stack
from core.results import EvaluationScore, JobResults

WITHOUT = "podium"
CASES: Mapping[str, Mapping[str, Any]] = {
    "trl": {"fast_path": False},
    WITHOUT: {},
    "dynamic": {"dynamic_sampling": {}},
    "prompts": {"prompt_sampling": {}},
    "both": {"dynamic_sampling": {}, "prompt_sampling": {}},
}
SCORES = (0.7, 0.8, 0.9)
"""Shares of the held-out tasks; the untrained model has about 0.54."""
ALL_OR_NOTHING = """\
import json


def reward(completion, record):
    try:
        return float(json.loads(completion) == record)
    except (ValueError, RecursionError):
        return 0.0
"""
NOT_TRAINING = ("phase/evaluation_s", "phase/checkpoint_s")


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    seconds: float
    rollouts: int


@dataclass(frozen=True, slots=True)
class Run:
    steps: Sequence[Step]
    pass_rates: Mapping[int, float]
    """Of the greedy answers, by the step that they were taken after."""
    wasted_s: float = 0.0

    @property
    def final(self) -> float:
        return self.pass_rates[max(self.pass_rates)]

    @property
    def bill_s(self) -> float:
        return sum(step.seconds for step in self.steps)

    def reach(self, score: float) -> Step | None:
        """What it took until then, in all; None where it never did."""
        number = next((step for step, rate in sorted(self.pass_rates.items()) if step and rate >= score), None)
        if number is None:
            return None
        taken = [step for step in self.steps if step.number <= number]
        return Step(number, sum(step.seconds for step in taken), sum(step.rollouts for step in taken))


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench sampling")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=5, help="steps between evaluations")
    parser.add_argument("--score", type=float, action="append", help="unset: 0.7, 0.8 and 0.9")
    parser.add_argument("--tasks", type=int, help="held-out tasks; unset: all")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = _run(Path(folder), arguments)
    rows = [row(runs, case, score) for score in arguments.score or SCORES for case in CASES]
    show("sampling", rows, as_json=arguments.json)


def row(runs: Mapping[str, Sequence[Run]], case: str, score: float) -> dict[str, Any]:
    """`runs`: by case, those of one round at the same place."""
    ours, without = ([run.reach(score) for run in runs[name]] for name in (case, WITHOUT))
    reached = [step for step in ours if step is not None]
    pairs = [(one, other) for one, other in zip(ours, without, strict=True) if one is not None and other is not None]
    ratios = [one.seconds / other.seconds for one, other in pairs] if len(pairs) == len(ours) else []
    is_whole = len(reached) == len(ours)
    return {
        "score": score,
        "case": case,
        "rounds": len(ours),
        "reached": len(reached),
        "seconds": round(median(step.seconds for step in reached), 2) if is_whole else "-",
        "steps": median(step.number for step in reached) if is_whole else "-",
        "rollouts": median(step.rollouts for step in reached) if is_whole else "-",
        "ratio": round(median(ratios), 3) if ratios else "-",
        "ratio_min": round(min(ratios), 3) if ratios else "-",
        "ratio_max": round(max(ratios), 3) if ratios else "-",
        "final": round(median(run.final for run in runs[case]), 3),
        "bill_s": round(median(run.bill_s for run in runs[case]), 1),
        "wasted_s": round(median(run.wasted_s for run in runs[case]), 1),
    }


def _run(folder: Path, arguments: argparse.Namespace) -> dict[str, list[Run]]:
    runs: dict[str, list[Run]] = {case: [] for case in CASES}
    with running_stack(DataFolder(folder / "data"), port=0, say=_demo_job.quiet) as (stack, connection):
        client = Client(connection.url, connection.api_key)
        spec = _spec(client, folder, arguments)
        for number in range(arguments.rounds):
            for case in _turned(list(CASES), number):
                runs[case].append(_measure(client, _asked(spec, case, seed=number + 1)))
                print(f"round {number + 1}: {case}", file=sys.stderr, flush=True)
                stack.tend()
    return runs


def _turned(cases: list[str], number: int) -> list[str]:
    place = number % len(cases)
    return cases[place:] + cases[:place]


def _spec(client: Client, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    held_out, reward = folder / HELDOUT.name, folder / "reward.py"
    held_out.write_text("".join(HELDOUT.read_text().splitlines(keepends=True)[: arguments.tasks]))
    reward.write_text(ALL_OR_NOTHING)
    spec = copy.deepcopy(job_spec(_demo_job.upload(client, held_out, reward)))
    spec["method"]["grpo"]["hyperparameters"]["max_steps"] = arguments.steps
    spec["method"]["grpo"]["evaluation"]["every_steps"] = arguments.every
    return spec


def _asked(spec: Mapping[str, Any], case: str, *, seed: int) -> dict[str, Any]:
    asked = {**copy.deepcopy(spec), "seed": seed}
    asked["method"]["grpo"]["hyperparameters"] |= CASES[case]
    return asked


def _measure(client: Client, spec: dict[str, Any]) -> Run:
    job = _demo_job.run(client, spec)
    results = JobResults.model_validate_json(client.results(job.id))
    numbers = spec["method"]["grpo"]["hyperparameters"]
    lines = csv.DictReader(io.StringIO(client.metrics_csv(job.id)))
    steps = [_step(line, prompts=numbers["prompts_per_step"], size=numbers["num_generations"]) for line in lines]
    taught = results.diagnostics.taught
    bill = None if taught is None else taught.bill
    return Run(steps, _pass_rates(results.evaluations), 0.0 if bill is None else bill.without_gradient_s)


def _step(line: Mapping[str, str], *, prompts: int, size: int) -> Step:
    seconds = float(line["phase/total_s"]) - sum(float(line[name]) for name in NOT_TRAINING)
    return Step(int(line["step"]), seconds, int(float(line.get("draw/groups_generated") or prompts)) * size)


def _pass_rates(evaluations: Sequence[EvaluationScore]) -> dict[int, float]:
    return {one.step: one.greedy.pass_rate for one in evaluations if one.greedy.pass_rate is not None}


if __name__ == "__main__":
    main()
