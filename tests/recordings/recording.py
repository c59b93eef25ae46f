"""The numbers of a real run, as its journal had them."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from core.learning.numbers import Asked, HeldOutScore, RunNumbers, StepNumbers
from core.metric_names import tells_time
from core.run_facts import asked_of, held_out_score
from worker.run_directory import EvaluationDone, RunDirectory, StepDone

DIGITS = 5
"""Significant ones: no rule looks closer, and a recording stays small."""


def path_of(name: str) -> Path:
    return Path(__file__).parent / f"{name}.json"


@cache
def recorded(name: str) -> RunNumbers:
    content = json.loads(path_of(name).read_text())
    asked = {key: tuple(value) if isinstance(value, list) else value for key, value in content["asked"].items()}
    columns = content["metrics"]
    return RunNumbers(
        [
            StepNumbers(step, {metric: values[place] for metric, values in columns.items()})
            for place, step in enumerate(content["steps"])
        ],
        [HeldOutScore(**score) for score in content["held_out"]],
        Asked(**asked),
    )


def of_run(run: RunDirectory) -> str:
    spec = run.read_plan().spec
    entries = [entry for entry, _ in run.read_journal()]
    steps = [entry for entry in entries if isinstance(entry, StepDone)]
    names = sorted({name for entry in steps for name in entry.metrics if not tells_time(name)})
    scores = [
        held_out_score(entry.name, evaluation, spec)
        for entry in entries
        if isinstance(entry, EvaluationDone) and (evaluation := run.read_evaluation(entry.name)) is not None
    ]
    content = {
        "asked": asdict(asked_of(spec)),
        "held_out": [asdict(score) for score in scores],
        "steps": [entry.step for entry in steps],
        "metrics": {name: [_short(entry.metrics.get(name)) for entry in steps] for name in names},
    }
    parts = [f'"{key}": {_lines(value)}' for key, value in content.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _lines(value: Any) -> str:
    """A line for each metric."""
    if not isinstance(value, dict):
        return json.dumps(value)
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items()) + "\n}"


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
