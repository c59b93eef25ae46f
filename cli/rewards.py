"""`podium reward ...`: try a reward function without a server, in the sandbox that a worker would use."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict

from cli.configuration import read_settings
from cli.terminal import say, say_table
from core.errors import ServiceError
from core.reward_report import FIRST_ROWS, CaseResult, Flag, FlagLevel, ProbeReport, ProbeStatus
from core.reward_source import FORMS, RewardForm
from core.settings import CHECKOUT, Settings

app = typer.Typer(no_args_is_help=True, help="Try a reward function, without a server.")
STYLES = {FlagLevel.ERROR: "red", FlagLevel.WARNING: "yellow", FlagLevel.INFO: None}
_SENT_CHARS = 40
_LOG_LINES = 20
_GRACE_S = 60.0
"""What starting and reading data may take beside the probe's own time."""
_CALL_S = 15.0
"""What a call of a reward may take that hangs."""

Source = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A Python file with the function.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", exists=True, dir_okay=False, help="JSONL, CSV or Parquet. Without: made-up rows."),
]
EntryPoint = Annotated[str | None, typer.Option(help="The function to call, where the file has several.")]
Form = Annotated[RewardForm | None, typer.Option(help="How it is called, where the names of its parameters mislead.")]
Rows = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1000,
        help="Take the first N rows: 8 spread over them are probed, completions graded on all.",
    ),
]
Completions = Annotated[list[str] | None, typer.Option("--completion", help="Also grade this text; repeatable.")]
AsJson = Annotated[bool, typer.Option("--json", help="The whole report, as JSON.")]
Deadline = Annotated[float, typer.Option("--deadline", min=1, max=3600, help="Seconds for the probe.")]


class RewardNotTried(ServiceError):
    """The machine or the data is at fault, and nothing is known about the reward."""

    code = "reward_not_tried"
    default_fix = "Run `podium doctor`; rewards are tried with the `worker` extra."


class Graded(BaseModel):
    """A completion that was given, and its grade on one row."""

    model_config = ConfigDict(frozen=True)

    completion: str
    line: int
    outcome: str
    value: float | None
    message: str | None
    traceback: str | None
    latency_s: float


class Tried(BaseModel):
    """What `worker.grading.try_reward` answers."""

    model_config = ConfigDict(frozen=True)

    report: ProbeReport
    completions: tuple[Graded, ...]
    output: str


@app.command("test")
def try_reward(
    source: Source,
    data: Data = None,
    entry_point: EntryPoint = None,
    form: Form = None,
    rows: Rows = None,
    completion: Completions = None,
    deadline: Deadline = 30.0,
    as_json: AsJson = False,
) -> None:
    """Load a reward in the sandbox, show it junk and right answers, and say what it pays for.

    Exit code 1: it does not load, or has a flag of level error.
    """
    request = {
        "source": str(source.absolute()),
        "data": None if data is None else str(data.absolute()),
        "rows": rows or FIRST_ROWS,
        "entry_point": entry_point,
        "form": form,
        "completions": completion or [],
        "graded_rows": rows or 1,
        "deadline_s": deadline,
    }
    calls = len(completion or []) * (rows or 1)
    answer = _ask(request, read_settings(), timeout_s=3 * deadline + calls * _CALL_S + _GRACE_S)
    tried = Tried.model_validate(answer)
    if as_json:
        say(json.dumps(answer, indent=2))
    else:
        _show(tried)
    raise typer.Exit(1 if tried.report.status is ProbeStatus.FAILED else 0)


@app.command("forms")
def list_forms() -> None:
    """The forms that a reward may be written in."""
    say_table(("form", "signature"), *((form, rule.signature) for form, rule in FORMS.items()))


def _ask(request: dict[str, Any], settings: Settings, *, timeout_s: float) -> dict[str, Any]:
    """Of the trainer's interpreter, as `podium doctor` asks; raises `RewardNotTried`."""
    command = [str(settings.trainer_python or Path(sys.executable)), "-m", "worker.grading.try_reward"]
    try:
        asked = subprocess.run(
            command, cwd=CHECKOUT, env=os.environ | _rules(settings), input=json.dumps(request), capture_output=True,
            text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RewardNotTried(f"Trying the reward took longer than {timeout_s:g} s.") from error
    if asked.returncode != 0:
        last = (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        raise RewardNotTried(f"The reward could not be tried: {last}")
    answer: dict[str, Any] = json.loads(asked.stdout)
    if (refused := answer.get("error")) is not None:
        raise RewardNotTried(refused["message"], fix=refused["fix"])
    return answer


def _rules(settings: Settings) -> dict[str, str]:
    """The operator's decisions, also those that stand in .env, by the names that `worker.grading.rules` reads."""
    return {
        "PODIUM_RUN_REWARD_CODE_WITHOUT_SANDBOX": str(settings.run_reward_code_without_sandbox).lower(),
        "PODIUM_REWARD_MEMORY_BYTES": str(settings.reward_memory_bytes),
    }


def _show(tried: Tried) -> None:
    report = tried.report
    say("loads: yes" if report.loads else f"loads: no\n{_printable_lines(report.load_error or '')}")
    for line in (*_columns(report), *_rows_used(report)):
        say(line)
    if report.cases:
        say()
        say_table(("case", "sent", "scored", "mean", "least", "most"), *_table(report))
    if tried.completions:
        say()
        say_table(("completion", "line", "outcome", "value"), *map(_graded_cells, tried.completions))
        for one in tried.completions:
            if one.message:
                say(_printable_lines(one.traceback or one.message))
    for line in _end(report):
        say(line)
    for flag in report.flags:
        _say_flag(flag)
    if lines := (report.output + tried.output).splitlines():
        say(f"\nwritten by the reward{', the end' if len(lines) > _LOG_LINES else ''}:")
        for line in lines[-_LOG_LINES:]:
            say(_printable(line))


def _columns(report: ProbeReport) -> Iterator[str]:
    columns = report.columns
    if columns is not None:
        any_other = "; every other column reaches it" if columns.takes_any else ""
        optional = f"; takes {', '.join(columns.optional)}" if columns.optional else ""
        yield f"columns: needs {', '.join(columns.required) or 'none'}{optional}{any_other}"
    if columns is not None and columns.missing:
        yield f"missing: {', '.join(column.name for column in columns.missing)}"


def _rows_used(report: ProbeReport) -> Iterator[str]:
    if report.rows:
        yield f"rows: {report.rows}{', made up: give some with --data' if report.synthetic else ''}"


def _table(report: ProbeReport) -> Iterator[tuple[str, ...]]:
    """A line for each text; one for all texts of a case that fared alike."""
    results = [*([report.gold.result] if report.gold else []), *report.cases]
    for case, of_case in groupby(results, key=lambda result: result.case):
        variants = list(of_case)
        fared = {_fared(result) for result in variants}
        if len(variants) > 1 and len(fared) == 1:
            yield f"{case}: {len(variants)} texts", _short(variants[0].sent), *fared.pop()
        else:
            yield from ((_named(result), _short(result.sent), *_fared(result)) for result in variants)


def _named(result: CaseResult) -> str:
    return f"{result.case}: {result.variant}" if result.variant else str(result.case)


def _fared(result: CaseResult) -> tuple[str, ...]:
    outcomes = result.outcomes
    graded = outcomes.scored + outcomes.no_answer + outcomes.errors
    return f"{outcomes.scored}/{graded}", _number(result.mean), _number(result.least), _number(result.most)


def _graded_cells(one: Graded) -> tuple[str, ...]:
    return (_short(one.completion), str(one.line), one.outcome, _number(one.value))


def _end(report: ProbeReport) -> Iterator[str]:
    yield ""
    if report.stable is not None:
        yield f"same input twice: {'same values' if report.stable else 'other values'}"
    if report.latency is not None:
        yield f"per completion: {report.latency.median_s * 1e3:.3g} ms, at most {report.latency.max_s * 1e3:.3g} ms"
    yield f"{report.status} in {report.seconds:.1f} s"


def _say_flag(flag: Flag) -> None:
    say()
    say(f"{flag.level}  {flag.code}", style=STYLES[flag.level])
    say(f"  {_printable(flag.message)}")
    say(f"  fix: {flag.fix}")


def _short(text: str) -> str:
    shown = _printable(text.replace("\n", " "))
    return f"{shown[: _SENT_CHARS - 3]}..." if len(shown) > _SENT_CHARS else shown


def _printable(text: str) -> str:
    """Without characters that would do something to a terminal."""
    return "".join(character if character.isprintable() or character == "\t" else "\ufffd" for character in text)


def _printable_lines(text: str) -> str:
    return "\n".join(_printable(line) for line in text.split("\n"))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
