"""The probe of a reward: what it pays for junk and for gold, whether it says the same twice, how fast it is.

First every text is tried on one row, alone: what hangs or crashes there costs one completion and is not tried again.
What that took says on how many more rows all of it can be tried in the time that is left. Then everything is asked a
second time, call for call, because a reward of a whole batch may rightly depend on what else is in it.
"""

import time
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from core.builtin_rewards.catalogue import bind_builtin
from core.builtin_rewards.parameters import Builtin
from core.errors import InvalidReward, Problem, ServiceError
from core.reward_report import Columns, Flag, FlagCode, FlagLevel, MissingColumn, ProbeReport, status_of
from core.reward_source import RewardEntry, RewardForm, bind, sources
from core.rows import Row
from worker.grading.client import Grader, GraderFailed, GraderNotStarted
from worker.grading.probe_flags import flags_of, in_order
from worker.grading.probe_results import seen_of
from worker.grading.probe_runs import Prober, Runs
from worker.grading.terms import BuiltinGrader
from worker.grading.values import storable

MOST_ROWS = 8
MOST_ITEM_S = 5.0
"""What a completion may take, as in a job; less where the whole probe has less than eight times that."""
_LEAST_ITEM_S = 0.05
_OUTPUT_CHARS = 4_000
_LOAD_ERROR_CHARS = 4_000
_FLAG_CHARS = 500
_NOWHERE = 0
"""The line of a row that was made up."""

_MADE_UP: Mapping[str, Any] = {
    "data_source": "openai/gsm8k",
    "extra_info": {},
    "info": {},
    "keywords": ["42"],
    "choices": ["41", "42", "43", "44"],
    "reward_model": {"ground_truth": "42", "style": "rule"},
    "tests": "assert True",
}
_MADE_UP_PROMPTS = ("What is 6 times 7?", "Name the number between 41 and 43.", "How many weeks are 294 days?")


def probe(
    grader: Prober,
    rows: Sequence[Row],
    *,
    deadline_s: float,
    reads: RewardEntry | Builtin | None = None,
    reserve_s: float = 0.0,
) -> ProbeReport:
    """What `grader`, which has been entered, makes of junk and gold for some of `rows`; without rows, for made-up ones.

    `reads`: what says which columns it needs; unset, a source's own entry. For a built-in it is the parameters.
    `reserve_s`: what a call may take that hangs. No call begins later than that before the deadline.
    """
    started = time.monotonic()
    if reads is None and isinstance(grader, Grader) and not isinstance(grader, BuiltinGrader):
        reads = grader.entry
    rows = _spread(rows, MOST_ROWS) or _made_up(reads)
    columns, missing = _bind(reads, rows)
    if missing:
        flags = tuple(_missing_flag(problem) for problem in missing)
        return _report(started, grader, flags, columns=columns, rows=len(rows), synthetic=_are_made_up(rows))
    runs = Runs(grader, rows, end=started + deadline_s - reserve_s)
    seen = seen_of(runs, columns, synthetic=_are_made_up(rows))
    return _report(
        started,
        grader,
        flags_of(seen),
        columns=columns,
        rows=runs.rows_used,
        synthetic=seen.synthetic,
        cases=tuple(seen.cases),
        gold=seen.gold,
        stable=None if seen.compared == 0 else not seen.changes,
        latency=seen.latency,
        not_tried=tuple(seen.not_tried),
    )


def probe_source(
    source: Path, rows: Sequence[Row], *, entry_point: str | None, form: RewardForm | None, deadline_s: float
) -> ProbeReport:
    """The same for a source that is not loaded yet; one that does not load has a report too.

    What crashes or hangs while it is loaded is tried once more. Raises `SandboxUnavailable` and `GraderNotStarted`:
    then nothing is known about the reward.
    """
    started = time.monotonic()
    how: dict[str, Any] = {"entry_point": entry_point, "form": form}
    try:
        try:
            report = _probe_loaded(source, rows, how, deadline_s)
        except GraderNotStarted:
            raise
        except GraderFailed:
            report = _probe_loaded(source, rows, how, deadline_s - (time.monotonic() - started))
    except GraderNotStarted:
        raise
    except (InvalidReward, GraderFailed) as error:
        return _unloadable(error, time.monotonic() - started)
    return report.model_copy(update={"seconds": time.monotonic() - started})


def _probe_loaded(source: Path, rows: Sequence[Row], how: Mapping[str, Any], deadline_s: float) -> ProbeReport:
    started = time.monotonic()
    with make_grader(source, **how, deadline_s=deadline_s) as grader:
        left_s = deadline_s - (time.monotonic() - started)
        return probe(grader, rows, deadline_s=left_s, reserve_s=longest_call_s(deadline_s))


def make_grader(source: Path, *, entry_point: str | None, form: RewardForm | None, deadline_s: float) -> Grader:
    """A grader with which a probe can keep its deadline, whatever the reward does."""
    item_s = _item_s(deadline_s)
    return Grader(
        source,
        entry_point=entry_point,
        form=form,
        item_deadline_s=item_s,
        batch_deadline_s=item_s,
        load_deadline_s=deadline_s / 2,
    )


def longest_call_s(deadline_s: float) -> float:
    """Of `make_grader`'s: `Grader.grade` may take three batch deadlines."""
    return 3 * _item_s(deadline_s)


def synthetic_rows(entry: RewardEntry) -> list[Row]:
    """Rows where there is no data: plausible values for the columns that the reward requires."""
    return _synthetic(entry.columns)


def _item_s(deadline_s: float) -> float:
    return max(_LEAST_ITEM_S, min(MOST_ITEM_S, deadline_s / 8))


def _spread(rows: Sequence[Row], most: int) -> list[Row]:
    """As many of them, evenly over all."""
    count = min(most, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def _made_up(reads: RewardEntry | Builtin | None) -> list[Row]:
    return _synthetic(() if reads is None else reads.columns)


def _synthetic(names: Sequence[str]) -> list[Row]:
    columns = {name: _MADE_UP.get(name, "42") for name in names}
    return [Row(_NOWHERE, prompt, columns) for prompt in _MADE_UP_PROMPTS]


def _are_made_up(rows: Sequence[Row]) -> bool:
    return all(row.line == _NOWHERE for row in rows)


def _bind(reads: RewardEntry | Builtin | None, rows: Sequence[Row]) -> tuple[Columns, list[Problem]]:
    """The reward's columns beside those that every row has."""
    present = [name for name in rows[0].columns if all(name in row.columns for row in rows)]
    match reads:
        case RewardEntry():
            problems = bind(reads, present, field="rows")
            lacking = [
                name for name in reads.columns if not any(source in present for source in sources(reads.form, name))
            ]
            optional, takes_any, required = reads.optional_columns, reads.takes_any, reads.columns
        case Builtin():
            problems = bind_builtin(reads, present, name="the built-in", field="rows")
            lacking = [name for name in reads.columns if name not in present]
            optional, takes_any, required = (), False, reads.columns
        case None:
            problems, lacking, optional, takes_any, required = [], [], (), True, ()
    missing = tuple(MissingColumn(name=name, nearest=tuple(get_close_matches(name, present))) for name in lacking)
    columns = Columns(required=required, optional=optional, takes_any=takes_any, missing=missing)
    return columns, problems


def _missing_flag(problem: Problem) -> Flag:
    return Flag(
        code=FlagCode.MISSING_COLUMN,
        level=FlagLevel.ERROR,
        message=f"{problem.message}.",
        fix=problem.fix or "Add the column to every row.",
    )


def _report(started: float, grader: Prober, flags: tuple[Flag, ...], **fields: Any) -> ProbeReport:
    return ProbeReport(
        status=status_of(flags),
        loads=True,
        flags=in_order(flags),
        output=grader.output.text()[-_OUTPUT_CHARS:],
        seconds=time.monotonic() - started,
        **fields,
    )


def _unloadable(error: ServiceError, seconds: float) -> ProbeReport:
    said = "\n".join(problem.message for problem in error.problems) or error.message
    fix = error.fix or "Load the file with Python by itself, and correct what it raises."
    said = storable(said if len(said) <= _LOAD_ERROR_CHARS else f"{said[: _LOAD_ERROR_CHARS - 4]} ...")
    message = f"{said.splitlines()[0][:_FLAG_CHARS]}."
    flag = Flag(code=FlagCode.DOES_NOT_LOAD, level=FlagLevel.ERROR, message=message, fix=fix)
    return ProbeReport(
        status=status_of([flag]),
        loads=False,
        load_error=said,
        load_raised=isinstance(error, InvalidReward),
        flags=(flag,),
        seconds=seconds,
    )
