"""`python -m worker.grading.try_reward`: a reward tried without a server; for `podium reward test`.

One request as JSON on standard input (`Request`), one answer on standard output: `Answer`, or `{"error": ...}` where
the machine or the data is at fault. A reward that does not load is an answer.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from core.errors import ServiceError
from core.logging import configure_logging
from core.reward_report import FIRST_ROWS, ProbeReport
from core.reward_source import RewardForm
from core.rows import Row, detect_format, read_rows
from worker.grading.client import Grader
from worker.grading.grades import Rollout
from worker.grading.probe_inputs import token_ids
from worker.grading.probing import make_grader, probe_source, synthetic_rows

_HEAD_BYTES = 4096


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Request(Strict):
    source: Path
    data: Path | None = None
    rows: int = FIRST_ROWS
    """How many of the data's first rows are used."""
    entry_point: str | None = None
    form: RewardForm | None = None
    completions: tuple[str, ...] = ()
    graded_rows: int = 1
    """For how many rows each completion is graded."""
    deadline_s: float = 30.0


class GradedCompletion(Strict):
    completion: str
    line: int
    """Of the row in the data; 0 where it was made up."""
    outcome: str
    value: float | None
    metrics: dict[str, float]
    message: str | None
    traceback: str | None
    latency_s: float


class Answer(Strict):
    report: ProbeReport
    completions: tuple[GradedCompletion, ...] = ()
    output: str = ""
    """What the reward wrote while the completions were graded."""


def main() -> None:
    configure_logging(level="ERROR")  # standard output is for the answer
    try:
        answer: BaseModel = try_reward(Request.model_validate_json(sys.stdin.read()))
    except ServiceError as error:
        answer = _Failed(error=_Error(code=error.code, message=error.message, fix=error.fix))
    sys.stdout.write(answer.model_dump_json())


def try_reward(request: Request) -> Answer:
    """Raises `InvalidFile`, `SandboxUnavailable`."""
    rows = _read(request.data, request.rows)
    how: dict[str, Any] = {
        "entry_point": request.entry_point,
        "form": request.form,
        "deadline_s": request.deadline_s,
    }
    report = probe_source(request.source, rows, **how)
    if not report.loads or not request.completions:
        return Answer(report=report)
    with make_grader(request.source, **how) as grader:
        used = (rows or synthetic_rows(grader.entry))[: request.graded_rows]
        completions = tuple(chain.from_iterable(_graded(grader, part) for part in _parts(grader, request, used)))
        return Answer(report=report, completions=completions, output=grader.output.text())


class _Error(Strict):
    code: str
    message: str
    fix: str | None


class _Failed(Strict):
    error: _Error


def _read(data: Path | None, count: int) -> list[Row]:
    if data is None:
        return []
    with data.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return list(islice(read_rows(data, detect_format(data.name, head)), count))


def _parts(grader: Grader, request: Request, rows: Sequence[Row]) -> Iterator[list[tuple[str, Row]]]:
    """What goes into one call: a call's time is short, and all in one would leave none to the last.

    A function of a whole batch gets all completions of a row; the others are called for one.
    """
    if grader.entry.form is RewardForm.TRL:
        yield from ([(text, row) for text in request.completions] for row in rows)
    else:
        yield from ([(text, row)] for text in request.completions for row in rows)


def _graded(grader: Grader, pairs: Sequence[tuple[str, Row]]) -> tuple[GradedCompletion, ...]:
    grades = grader.grade([Rollout(row.prompt, text, token_ids(text), row.columns) for text, row in pairs])
    return tuple(
        GradedCompletion(
            completion=text,
            line=row.line,
            outcome=grade.outcome,
            value=grade.value,
            metrics=dict(grade.metrics),
            message=grade.message,
            traceback=grade.traceback,
            latency_s=grade.latency_s,
        )
        for (text, row), grade in zip(pairs, grades, strict=True)
    )


if __name__ == "__main__":
    main()
