"""What a training step costs beside TRL's, with the same gradients: the passes that change none are left out.

    podium bench trainer [--quick] [--device cpu|cuda] [--model tiny|small|qwen3-1.7b] [--rounds N]
        [--rows FILE] [--json]

Both trainers get the same rollouts and take turns. `passes_ratio` is TRL's seconds for all passes of a step divided by
ours; `step_ratio` the same with generation and the optimizer. `floor_ratio` is how far we are from what the operation
count promises: 1 is there, 1.25 takes a quarter longer, which is the goal on a CPU. `memory_ratio` is our peak by
TRL's, on a GPU: never above 1. The first three rows are the shape of a measured run (16 prompts x 8 rollouts, 327 + 44
tokens), of which `bill_s` is the length: 8,847 s with TRL, 8,137 of them in passes. `podium bench bill` has it by
operation count.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bench._passes import MODELS, Bench, Shape, open_bench
from bench._table import show
from bench.bill import BILL_S, FIXED_S

SLOWEST = 0.98
"""No shape may be slower than this share of TRL's speed."""
FARTHEST_FROM_FLOOR, MOST_MEMORY = 1.25, 1.0


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    shape: Shape
    goal: float | None
    generates: bool = False
    """Whether the whole step is measured too."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench trainer")
    parser.add_argument("--quick", action="store_true", help="a smaller model, one round, the corners of the grid")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--rows", type=Path, help="a file that gets each row as soon as it is measured, as JSON lines")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(_rows(Path(folder), arguments))
    show("trainer", rows, as_json=arguments.json)


def _rows(folder: Path, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    size = arguments.model or ("tiny" if arguments.quick else "small")
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    for case in (*_cases(), *_grid(is_quick=arguments.quick)):
        row = _measure(case, folder, size=size, rounds=rounds, on_cuda=arguments.device == "cuda")
        if arguments.rows is not None:
            with arguments.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
        yield row


def _cases() -> list[Case]:
    """16 prompts x 8 rollouts, 327 + 44 tokens, at three shares of silence; and long answers to short prompts."""
    first = [
        Case(
            f"seed_silent_{share}",
            Shape(prompt=327, completion=44, group=8, prompts=16, silent=silent, rollouts_per_pass=16, corrects=True),
            goal,
            generates=True,
        )
        for share, silent, goal in ((0, 0, 5.0), (81, 13, 20.0), (100, 16, None))
    ]
    long = Shape(prompt=64, completion=512, group=8, prompts=4, silent=0, rollouts_per_pass=8, corrects=True)
    return [*first, Case("long_answers", long, 1.2, generates=True)]


def _grid(*, is_quick: bool) -> list[Case]:
    """Without the correction: what is left out must pay for itself on any shape."""
    lengths = (16, 2048) if is_quick else (16, 256, 2048)
    groups = (8,) if is_quick else (2, 16)
    silent_of_prompts = {0: (0, 2)} if is_quick else {0: (0, 2), 80: (4, 5), 100: (2, 2)}
    return [
        Case(
            f"prompt_{prompt}_completion_{completion}_group_{group}_silent_{share}",
            Shape(
                prompt=prompt,
                completion=completion,
                group=group,
                prompts=prompts,
                silent=silent,
                rollouts_per_pass=group,
                corrects=False,
            ),
            SLOWEST,
        )
        for prompt, completion, group, (share, (silent, prompts)) in product(
            lengths, lengths, groups, silent_of_prompts.items()
        )
    ]


def _measure(case: Case, folder: Path, *, size: str, rounds: int, on_cuda: bool) -> dict[str, Any]:
    stock = open_bench(case.shape, folder, size=size, fast=False, on_cuda=on_cuda)
    fast = open_bench(case.shape, folder, size=size, fast=True, on_cuda=on_cuda)
    fast.passes()  # what is done once: kernels are chosen, memory is taken
    theirs, ours = _in_turns(stock, fast, rounds)
    ratio = theirs / ours
    rest = fast.generation() + fast.optimizer() if case.generates else None
    memory = _memory_ratio(stock, fast)
    left = fast.operations_left
    floor_ratio = round(ours / theirs / left, 2) if left else None
    del stock, fast
    if on_cuda:
        torch.cuda.empty_cache()
    return {
        "case": case.name,
        "passes_ratio": round(ratio, 2),
        "step_ratio": None if rest is None else round((rest + theirs) / (rest + ours), 2),
        "floor_ratio": floor_ratio,
        "floor_met": None if on_cuda or floor_ratio is None else floor_ratio <= FARTHEST_FROM_FLOOR,
        "goal": case.goal,
        "met": None if case.goal is None else ratio >= case.goal,
        "trl_passes_s": round(theirs, 3),
        "passes_s": round(ours, 3),
        "memory_ratio": memory,
        "memory_met": None if memory is None else memory <= MOST_MEMORY,
        "bill_s": round(FIXED_S + (BILL_S - FIXED_S) / ratio) if case.name.startswith("seed") else None,
    }


def _in_turns(stock: Bench, fast: Bench, rounds: int) -> tuple[float, float]:
    """Medians of the seconds of both, each going first every other time."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number in range(rounds):
        for is_fast in (number % 2 == 0, number % 2 == 1):
            seconds[is_fast].append((fast if is_fast else stock).passes())
    return median(seconds[False]), median(seconds[True])


def _memory_ratio(stock: Bench, fast: Bench) -> float | None:
    """Ours by TRL's, at the peak, without the weights."""
    theirs, ours = stock.peak_bytes(), fast.peak_bytes()
    return None if theirs is None or ours is None else round(ours / theirs, 2)


if __name__ == "__main__":
    main()
