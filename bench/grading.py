"""What grading costs, and what of it the sandbox does: gradings a second, and how long one waits for a first grade.

    podium bench grading [--quick] [--seconds S] [--rounds N] [--tries N] [--json]

Speeds and starts are measured in the sandbox and without one, turn by turn; `ratio` is the median of the pairs, and
where it has a goal, `met` means both. The exit code is 1 where a goal is not met. The reward is trivial, so that all of
the time is ours. Prompts have 1.3 kB, completions 400 characters.

`recovery`: from the answer to a rollout that broke its sandbox until the next grade, which a new sandbox gives. Only
in the sandbox, as is `graders/run`: the reply of a real API and grading worker, of the local stack that is started for
it. `--quick` is one round with small numbers, to see that all of it works.
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

from bench._replies import reply_ms
from bench._table import show
from worker.grading.client import Grader, Rollout
from worker.grading.rules import MEMORY_VARIABLE, UNSAFE_VARIABLE

TRIVIAL = "def reward(completion, answer): return float(completion == answer)\n"
MATHEMATICAL = "from math_verify import parse, verify\n" + TRIVIAL
HOSTILE = """
import ctypes, os, time

def reward(completion):
    if completion == "crash":
        ctypes.string_at(0)
    if completion == "hang":
        sum(range(10**15))
    if completion == "memory bomb":
        for _ in range(8):
            if os.fork() == 0:
                held = bytearray(b"x" * (64 * 1024**2))
                time.sleep(3600 + len(held))
        time.sleep(3600)
    return 1.0
"""
BOMB_BYTES = 384 * 1024**2
"""What a sandbox may hold where the memory bomb is: its processes want a third more, and no machine is short of it."""
HANG_S = 0.5
ROLLOUT = Rollout("Q" * 1300, "A" * 400, list(range(100)), {"answer": "A" * 400})
BATCH = 64
LEAST_RATIO = 0.9
"""Of gradings a second: the sandbox may cost a tenth."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench grading")
    parser.add_argument("--quick", action="store_true", help="one round of 0.2 s, 3 tries")
    parser.add_argument("--seconds", type=float, help="of grading for each figure of a round; unset: 1")
    parser.add_argument("--rounds", type=int, help="unset: 7")
    parser.add_argument("--tries", type=int, help="calls of graders/run for each grader; unset: 20")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds = arguments.seconds or (0.2 if arguments.quick else 1.0)
    rounds = arguments.rounds or (1 if arguments.quick else 7)
    tries = arguments.tries or (3 if arguments.quick else 20)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))  # it warns at every plain start
    with tempfile.TemporaryDirectory() as folder:
        rows = [*_rows(Path(folder), rounds, seconds), *_recovery_rows(Path(folder), rounds)]
    rows += _reply_rows(tries)
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


def _recovery_rows(folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    hostile = folder / "hostile.py"
    hostile.write_text(HOSTILE)
    for attack in ("crash", "hang", "memory bomb"):
        with _environment(MEMORY_VARIABLE, str(BOMB_BYTES)), _environment(UNSAFE_VARIABLE, "false"):
            values = [_recovery_ms(hostile, attack) for _ in range(rounds)]
        yield _alone(f"recovery after a {attack}, ms", statistics.median(values), at_most=1_000)


def _recovery_ms(source: Path, attack: str) -> float:
    """From the attack's answer to the next grade. A hang has a deadline; the bomb is ended before it needs one."""
    item_s = HANG_S if attack == "hang" else 30.0
    with Grader(source, item_deadline_s=item_s, batch_deadline_s=2 * item_s) as grader:
        (broken,) = grader.grade([Rollout("", attack, [], {})])
        started = time.perf_counter()
        (fine,) = grader.grade([Rollout("", "fine", [], {})])
        passed_ms = (time.perf_counter() - started) * 1000
    if not broken.is_error or fine.value != 1.0:
        raise SystemExit(f"a {attack} was graded {broken}, and after it {fine}")
    return passed_ms


def _reply_rows(tries: int) -> Iterator[dict[str, Any]]:
    for kind, values in reply_ms(tries).items():
        yield _alone(f"graders/run {kind}, ms, median of {tries}", statistics.median(values))
        yield _alone(f"graders/run {kind}, ms, slowest of {tries}", max(values), at_most=2_000)


def _alone(what: str, sandboxed: float, *, at_most: float | None = None) -> dict[str, Any]:
    """A figure that has no counterpart without a sandbox."""
    figures = {"sandboxed": round(sandboxed), "plain": "-", "ratio": "-"}
    if at_most is None:
        return {"what": what, **figures, "goal": "-", "met": "-"}
    return {"what": what, **figures, "goal": f"<= {at_most:,.0f}", "met": sandboxed <= at_most}


def _pairs(measure: Callable[[], float], rounds: int) -> list[tuple[float, float]]:
    """Sandboxed and plain, the order changing from round to round."""
    pairs = []
    for number in range(rounds):
        values = {}
        for sandboxed in (True, False) if number % 2 == 0 else (False, True):
            with _environment(UNSAFE_VARIABLE, "false" if sandboxed else "true"):
                values[sandboxed] = measure()
        pairs.append((values[True], values[False]))
    return pairs


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


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
