"""Runs to judge, made from a seed: a healthy one, and what to spoil it with."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from core.learning.numbers import Asked, HeldOutScore, RunNumbers, StepNumbers

ASKED = Asked(
    num_generations=8,
    max_completion_length=160,
    learning_rate=2e-5,
    reward_terms=("format", "match"),
    watched=("death_date",),
)
HELD_OUT = (
    HeldOutScore("baseline", 0, 200, 107, 0.62),
    HeldOutScore("step-50", 50, 200, 150, 0.80),
    HeldOutScore("final", 100, 200, 196, 0.98),
)

Curve = Callable[[float], float]
"""A value over the run, which goes from 0 to 1."""


def run_of(
    seed: int = 1,
    *,
    steps: int = 100,
    noise: float = 0.03,
    held_out: Sequence[HeldOutScore] = HELD_OUT,
    **curves: Curve | None,
) -> RunNumbers:
    """A healthy run but for `curves`, by metric with `__` for `/`; None leaves the metric out."""
    generator = random.Random(seed)
    wanted: Mapping[str, Curve | None] = {**HEALTHY, **{name.replace("__", "/"): of for name, of in curves.items()}}

    def step(number: int) -> StepNumbers:
        place = number / steps
        metrics = {name: of(place) * generator.gauss(1, noise) for name, of in wanted.items() if of is not None}
        return StepNumbers(number, metrics)

    return RunNumbers([step(number) for number in range(1, steps + 1)], held_out, ASKED)


def line(begin: float, end: float) -> Curve:
    return lambda place: begin + (end - begin) * place


def from_place(place_of_change: float, before: float, after: float) -> Curve:
    return lambda place: before if place < place_of_change else after


HEALTHY: Mapping[str, Curve] = {
    "reward": line(0.62, 0.97),
    "rewards/format/mean": line(0.8, 1.0),
    "rewards/match/mean": line(0.5, 0.96),
    "loss": line(0.02, 0.01),
    "grad_norm": line(0.4, 0.2),
    "entropy": line(0.5, 0.25),
    "kl": line(0.0, 0.3),
    "completions/mean_length": line(44, 46),
    "completions/clipped_ratio": line(0.02, 0.0),
    "completions/compressed_share": line(0.5, 0.45),
    "completions/most_common_share": line(0.03, 0.1),
    "completions/refusal_share": line(0.0, 0.01),
    "signal/reward_length_correlation": line(0.1, 0.1),
    "signal/silent_share": line(0.36, 0.68),
    "signal/silent_all_right": line(0.2, 0.66),
    "signal/silent_all_wrong": line(0.16, 0.02),
    "grader/error_share": line(0.0, 0.0),
}

GOLD = {"death_place": 136, "death_date": 258, "birth_place": 750, "birth_date": 1158}
DOCUMENTS = 1158
NULLS_BEFORE = {"death_place": 39, "death_date": 1, "birth_place": 97, "birth_date": 0}
NULLS_SINCE = {"death_place": 131, "death_date": 181, "birth_place": 176, "birth_date": 13}
NULLS_AT_THE_END = {"death_place": 28, "death_date": 1, "birth_place": 106, "birth_date": 0}
"""A measured collapse: nulls where the data have a value, of 1,158 documents, at steps 150, 240 and 606. The training
reward stayed between 0.95 and 0.98.
"""
PROMPTS, GROUP, CHANGE, HEALED = 16, 8, 200, 400


def collapsing_run(seed: int, *, steps: int = 240) -> RunNumbers:
    """Prompts drawn from those documents, each completion on its own. The whole run had 606 steps."""
    generator = random.Random(seed)
    numbers = []
    for step in range(1, steps + 1):
        nulls = NULLS_BEFORE if step < CHANGE else NULLS_SINCE if step < HEALED else NULLS_AT_THE_END
        metrics: dict[str, float | None] = {"reward": generator.uniform(0.95, 0.98)}
        for name, gold in GOLD.items():
            due = GROUP * sum(generator.random() < gold / DOCUMENTS for _ in range(PROMPTS))
            lost = sum(generator.random() < nulls[name] / gold for _ in range(due))
            metrics[f"watch/{name}/rows"] = due
            metrics[f"watch/{name}/null_share"] = lost / due if due else None
        numbers.append(StepNumbers(step, metrics))
    return RunNumbers(numbers, HELD_OUT, replace(ASKED, watched=tuple(GOLD)))
