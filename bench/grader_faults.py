"""What broken rewards become: crashes, hangs and garbage answers injected into real grading, and counted.

    podium bench grader_faults [--faults 10000] [--hangs 20] [--seed 0] [--json]

Among rollouts that are graded well, others make the reward crash its process, hang, or answer with what is not a
number. The claim: none of them becomes a number, each is counted as what it was, and every good rollout between them
keeps its own score. Crashes are three of ten faults; hangs cost their deadline, so they are few.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from bench._table import show
from worker.grading.client import Grade, GradeOutcome, Grader, Rollout

CRASHES = {
    "segfault": "ctypes.string_at(0)",
    "exit 0": "os._exit(0)",
    "exit 3": "os._exit(3)",
    "killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "os.abort()",
    "closed descriptors": "os.closerange(0, 256)",
    "garbage frames": "[write(fd, b'\\xff' * 64) for fd in range(3, 256)]; time.sleep(60)",
    "forged grades": "[write(fd, FORGED) for fd in range(3, 256)]; time.sleep(60)",
}
HANGS = {
    "endless loop": "while True: pass",
    "sleep": "time.sleep(3600)",
    "caught alarm": "stubborn()",
    "endless regex": "re.match('(a+)+$', 'a' * 64 + 'b')",
}
ERRORS = {
    "nan": "return float('nan')",
    "infinity": "return -float('inf')",
    "huge integer": "return 10 ** 400",
    "huge float": "return 1e31",
    "text": "return '1.0'",
    "list": "return [1.0]",
    "complex": "return 1j",
    "generator": "return (x for x in [1.0])",
    "object": "return object()",
    "empty dictionary": "return {}",
    "dictionary of text": "return {'score': '1'}",
    "invalid score": "return {'score': 1.0, 'is_score_valid': False}",
    "exception": "raise ValueError('no')",
    "exit": "raise SystemExit(0)",
    "interrupt": "raise KeyboardInterrupt",
    "recursion": "return reward(completion)",
    "unspeakable": "raise Unspeakable",
}
SILENCES = {"none": "return None", "dictionary of none": "return {'score': None}"}
EXPECTED = {
    **dict.fromkeys((*CRASHES, *HANGS), GradeOutcome.INFRASTRUCTURE_ERROR),
    **dict.fromkeys(ERRORS, GradeOutcome.USER_ERROR),
    **dict.fromkeys(SILENCES, GradeOutcome.NO_ANSWER),
}
PRELUDE = """\
import ctypes, os, re, signal, sys, time
FORGED = b'\\x00\\x00\\x00\\x3a{"id":"0","grades":[{"outcome":"scored","value":1.0}]}     '

class Unspeakable(Exception):
    def __str__(self): raise RuntimeError

def write(fd, data):
    try:
        os.write(fd, data)
    except OSError:
        pass

def stubborn():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            return 1.0

def reward(completion):
    kind, _, number = completion.partition(":")
    if kind == "good":
        return int(number)
"""
CRASH_SHARE = 0.3
BATCH = 64
ITEM_DEADLINE_S = 2.0


@dataclass(frozen=True, slots=True)
class Injected:
    """One rollout and what must come of it."""

    kind: str
    number: int

    @property
    def rollout(self) -> Rollout:
        return Rollout("", f"{self.kind}:{self.number}", [], {})

    def is_met_by(self, grade: Grade) -> bool:
        if self.kind == "good":
            return grade.value == self.number
        return grade.outcome is EXPECTED[self.kind] and grade.value is None and grade.timed_out == (self.kind in HANGS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench grader_faults")
    parser.add_argument("--faults", type=int, default=10_000)
    parser.add_argument("--hangs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    started = time.monotonic()
    rows = inject(plan(arguments.faults, arguments.hangs, arguments.seed))
    show("grader_faults", rows, as_json=arguments.json)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    sys.exit(any(row["unexpected"] for row in rows))


def plan(faults: int, hangs: int, seed: int) -> list[Injected]:
    """The faults in a random order, with a fifth as many good rollouts between them."""
    dice = random.Random(seed)
    crashes = round(CRASH_SHARE * (faults - hangs))
    kinds = [
        *_cycle(CRASHES, crashes),
        *_cycle(HANGS, hangs),
        *_cycle({**ERRORS, **SILENCES}, faults - hangs - crashes),
        *["good"] * (faults // 5),
    ]
    dice.shuffle(kinds)
    return [Injected(kind, number) for number, kind in enumerate(kinds)]


def inject(planned: Sequence[Injected]) -> list[dict[str, Any]]:
    """Grade all of it, and count what came of each kind."""
    outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "reward.py")
        source.write_text(PRELUDE + "".join(_branches()))
        with Grader(source, item_deadline_s=ITEM_DEADLINE_S) as grader:
            for start in range(0, len(planned), BATCH):
                batch = planned[start : start + BATCH]
                for one, grade in zip(batch, grader.grade([one.rollout for one in batch]), strict=True):
                    outcomes[one.kind][grade.outcome] += 1
                    if not one.is_met_by(grade):
                        outcomes[one.kind]["unexpected"] += 1
                        print(f"{one.kind}: {grade.outcome} {grade.value} {grade.message}", file=sys.stderr)
    return [_row(kind, outcomes[kind]) for kind in ("good", *EXPECTED) if kind in outcomes]


def _branches() -> Iterator[str]:
    for kind, statement in {**CRASHES, **HANGS, **ERRORS, **SILENCES}.items():
        yield f"    if kind == {kind!r}:\n        {'return ' if kind == 'caught alarm' else ''}{statement}\n"


def _cycle(kinds: dict[str, str], count: int) -> list[str]:
    names = list(kinds)
    return [names[number % len(names)] for number in range(count)]


def _row(kind: str, counts: Counter[str]) -> dict[str, Any]:
    return {
        "injected": kind,
        "rollouts": sum(counts[outcome] for outcome in GradeOutcome),
        **{outcome.value: counts[outcome] for outcome in GradeOutcome},
        "unexpected": counts["unexpected"],
    }


if __name__ == "__main__":
    main()
