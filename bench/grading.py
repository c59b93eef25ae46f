"""What grading costs, and what of it the sandbox does: gradings a second, and how long a start takes.

    podium bench grading [--seconds S] [--rounds N] [--json]

Every figure is measured in the sandbox and without one, turn by turn; `ratio` is the median of the pairs, and where it
has a goal, `met` means both. The exit code is 1 where a goal is not met. The reward is
trivial, so that all of the time is ours. Prompts have 1.3 kB, completions 400 characters.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from bench._table import show
from worker.grading.client import Grader, Rollout
from worker.grading.rules import UNSAFE_VARIABLE

TRIVIAL = "def reward(completion, answer): return float(completion == answer)\n"
MATHEMATICAL = "from math_verify import parse, verify\n" + TRIVIAL
ROLLOUT = Rollout("Q" * 1300, "A" * 400, list(range(100)), {"answer": "A" * 400})
BATCH = 64
LEAST_RATIO = 0.9
"""Of gradings a second: the sandbox may cost a tenth."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench grading")
    parser.add_argument("--seconds", type=float, default=1.0, help="of grading for each figure of a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # it warns at every plain start
    with tempfile.TemporaryDirectory() as folder:
        rows = list(_rows(Path(folder), arguments.rounds, arguments.seconds))
    show("grading", rows, as_json=arguments.json)
    sys.exit(0 if all(row["met"] for row in rows) else 1)


def _rows(folder: Path, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    trivial, mathematical = folder / "trivial.py", folder / "mathematical.py"
    trivial.write_text(TRIVIAL)
    mathematical.write_text(MATHEMATICAL)
    _cold_start_ms(trivial)  # the first start of a process finds out which sandbox works here
    batches, singles = partial(_gradings_per_s, trivial, BATCH, seconds), partial(_gradings_per_s, trivial, 1, seconds)
    yield _row("gradings/s, batches of 64", _pairs(batches, rounds), at_least=50_000)
    yield _row("single calls/s", _pairs(singles, rounds), at_least=5_000)
    yield _row("cold start, ms", _pairs(partial(_cold_start_ms, trivial), rounds), at_most=150)
    started = _pairs(partial(_cold_start_ms, mathematical), rounds)
    yield _row("cold start with math-verify, ms", started, at_most=1_500)


def _pairs(measure: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Sandboxed and plain, the order changing from round to round."""
    pairs = []
    for number in range(rounds):
        values = {}
        for sandboxed in (True, False) if number % 2 == 0 else (False, True):
            with _grading(sandboxed=sandboxed):
                values[sandboxed] = measure()
        pairs.append((values[True], values[False]))
    return pairs


@contextmanager
def _grading(*, sandboxed: bool) -> Iterator[None]:
    before = os.environ.get(UNSAFE_VARIABLE, "false")
    os.environ[UNSAFE_VARIABLE] = "false" if sandboxed else "true"
    try:
        yield
    finally:
        os.environ[UNSAFE_VARIABLE] = before


def _gradings_per_s(source: Path, size: int, seconds: float) -> float:
    rollouts = [ROLLOUT] * size
    with Grader(source) as grader:
        grader.grade(rollouts)
        count, started = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            count += len(grader.grade(rollouts))
    return count / elapsed


def _cold_start_ms(source: Path) -> float:
    """Until the first grade is there."""
    started = time.perf_counter()
    with Grader(source) as grader:
        grader.grade([ROLLOUT])
        return (time.perf_counter() - started) * 1000


def _row(
    what: str,
    pairs: Sequence[tuple[float, float]],
    *,
    at_least: float | None = None,
    at_most: float | None = None,
) -> dict[str, Any]:
    sandboxed, plain = (statistics.median(values) for values in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for one, other in pairs)
    if at_least is not None:
        goal, met = f">= {at_least:,.0f}, ratio >= {LEAST_RATIO:g}", sandboxed >= at_least and ratio >= LEAST_RATIO
    else:
        assert at_most is not None, "every figure has a goal"
        goal, met = f"<= {at_most:,.0f}", sandboxed <= at_most
    figures = {"sandboxed": round(sandboxed), "plain": round(plain), "ratio": round(ratio, 2)}
    return {"what": what, **figures, "goal": goal, "met": met}


if __name__ == "__main__":
    main()
