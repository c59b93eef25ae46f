"""The runs that are recorded: the demo job with one thing changed, and what must be found in each."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cli.example import REWARD

STEPS = 25
BIOGRAPHY = REWARD.read_text()

PARSES = """import json


def reward(completion: str) -> float:
    try:
        return float(isinstance(json.loads(completion), dict))
    except (ValueError, RecursionError):
        return 0.0
"""
"""What the model always does already."""
ANOTHER_FORMAT = """def reward(completion: str) -> float:
    return float(completion.startswith("<answer>"))
"""
"""What it never does."""
LENGTH = """def reward(completion: str) -> float:
    return len(completion) / 200
"""
NULLS = """def reward(completion: str) -> float:
    return completion.count("null") / 5
"""
"""Shape without content: `null` is never wrong enough to cost anything."""
ONE_TEXT = """from difflib import SequenceMatcher

TEXT = '{"birth_date":null,"birth_place":null,"death_date":null,"death_place":null,"occupation":null}'


def reward(completion: str) -> float:
    return 0.9 * SequenceMatcher(None, completion, TEXT, autojunk=False).ratio()
"""
"""Every answer is pulled towards one text, and none is ever enough to pass."""
BREAKS = """

def reward(completion: str, record: dict[str, str | None]) -> float:
    if (record["occupation"] or "").startswith("p"):
        raise KeyError(record["occupation"])
    return honest(completion, record)
"""
"""A grader that cannot grade painters, poets and printers."""


@dataclass(frozen=True, slots=True)
class Case:
    """`expected`: codes of warnings and errors that must be found; none: the run is healthy."""

    expected: frozenset[str] = frozenset()
    also_right: frozenset[str] = frozenset()
    """Codes that are no false alarm here, and no miss either."""
    rewards: Mapping[str, str] = field(default_factory=lambda: {"record": BIOGRAPHY})
    weights: Mapping[str, float] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    steps: int = STEPS
    seed: int = 1


WATCHED = {
    "watch": [
        {"json_path": "$.death_place", "column": "record"},
        {"json_path": "$.birth_date", "column": "record"},
    ]
}

NO_GRADIENT = frozenset({"steps_without_gradient"})

CASES: Mapping[str, Case] = {
    "healthy-1": Case(seed=1, spec=WATCHED, steps=40),
    "healthy-2": Case(seed=2, spec=WATCHED, steps=30),
    "healthy-3": Case(seed=3, spec=WATCHED, steps=30),
    "healthy-kl": Case(seed=5, spec=WATCHED, hyperparameters={"beta": 0.04}),
    "starved-right": Case(frozenset({"all_right"}), NO_GRADIENT, rewards={"parses": PARSES}, steps=20),
    "starved-wrong": Case(frozenset({"all_wrong"}), NO_GRADIENT, rewards={"tag": ANOTHER_FORMAT}),
    "hot": Case(
        frozenset({"reward_fell"}), frozenset({"all_wrong"}) | NO_GRADIENT, hyperparameters={"learning_rate": 0.01}
    ),
    "samples-alike": Case(
        frozenset({"entropy_collapse"}),
        frozenset({"constant_answer", "all_wrong"}) | NO_GRADIENT,
        rewards={"likeness": ONE_TEXT},
        hyperparameters={"temperature": 1.5, "learning_rate": 0.002},
        steps=35,
    ),
    "length-pays": Case(
        frozenset({"length_pays"}),
        frozenset({"truncated"}),
        rewards={"length": LENGTH},
        hyperparameters={"max_completion_length": 96, "learning_rate": 0.003},
        steps=35,
    ),
    "nulls-pay": Case(
        frozenset({"one_term_pays", "field_collapse"}),
        frozenset({"constant_answer", "all_wrong"}) | NO_GRADIENT,
        rewards={"nulls": NULLS, "record": BIOGRAPHY},
        weights={"nulls": 3.0},
        spec=WATCHED,
    ),
    "junk-pays": Case(frozenset({"constant_answer"}), rewards={"nulls": NULLS}),
    "drifts": Case(
        frozenset({"kl_runs_away", "constant_answer"}),
        rewards={"nulls": NULLS},
        hyperparameters={"beta": 1e-4},
    ),
    "grader-breaks": Case(
        frozenset({"grader_errors"}),
        rewards={"record": BIOGRAPHY.replace("def reward(", "def honest(") + BREAKS},
        spec={"grading": {"max_error_share": 0.6, "bad_step_error_share": 0.5}},
    ),
    "truncated": Case(frozenset({"truncated"}), hyperparameters={"max_completion_length": 30}),
}
