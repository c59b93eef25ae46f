"""`rescore`: a job's stored rollouts and held-out answers, graded by another version of one of its rewards.

The other terms keep what they said at the time; weights, gates and formulas are the job's own. Texts are read, graded
and compared step by step. What there is no time for is left out and counted: nothing that was graded is lost for it.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from core import keys
from core.db import progress, rescoring
from core.db.models import EvaluationRecord, File
from core.db.rescoring import Outline
from core.ids import JobId
from core.recorded import MOST_BYTES, RecordedStep, notes_on, total_coverage
from core.rescoring import MOST_TEXT, EvaluationChange, Regraded, Rescore, RescoreReport, compare, evaluation_change
from core.results import Evaluation
from core.reward_source import RewardEntry, RewardForm
from core.rows import FileFormat, Row, read_rows
from worker.grading.client import NOT_TRIED, Grader
from worker.grading.gates import Settlement, formula_of
from worker.grading.grades import Grade, GradeOutcome, Rollout, combine
from worker.grading_tasks.context import Context
from worker.grading_tasks.rescore_reading import Found, RescoredThingGone, look_up
from worker.run_directory import Rollout as StoredRollout
from worker.run_directory import RolloutGrade

ITEM_DEADLINE_S = 2.0
BATCH_DEADLINE_S = 6.0
"""A call of the grader takes at most three of these."""
LOAD_DEADLINE_S = 10.0
SPARE_S = 10.0
"""Of the task's time, after the last grade: to compare."""

_ENTRY = TypeAdapter(RewardEntry)


def handle(request: dict[str, Any], context: Context) -> dict[str, Any]:
    asked = Rescore.model_validate(request)
    until = time.monotonic() + context.time_s - SPARE_S
    found = look_up(asked, context)
    source = context.folder / "reward.py"
    source.write_text(found.version.source, encoding="utf-8")
    entry = _ENTRY.validate_python(found.version.entry)
    grader = Grader(
        source,
        entry_point=entry.name,
        form=asked.form or entry.form,
        batch_deadline_s=BATCH_DEADLINE_S,
        item_deadline_s=ITEM_DEADLINE_S,
        load_deadline_s=LOAD_DEADLINE_S,
    )
    with grader:
        again = _Again(asked, found, grader, context, until)
        regraded, recorded = again.rollouts()
        evaluations = list(again.evaluations())
    return _report(found, regraded, recorded, evaluations, grader.entry.form).model_dump(mode="json")


def _report(
    found: Found,
    regraded: Sequence[Regraded],
    recorded: Mapping[int, RecordedStep],
    evaluations: Sequence[EvaluationChange],
    form: RewardForm,
) -> RescoreReport:
    left_out = replace(
        found.choice.left_out,
        no_time=found.choice.rollouts - len(regraded),
        evaluations=len(found.evaluations) - len(evaluations),
    )
    return compare(
        regraded,
        threshold=found.spec.pass_threshold,
        left_out=left_out.rollouts,
        evaluations=tuple(evaluations) if len(found.spec.rewards) == 1 else None,
        recorded=recorded,
        notes=notes_on(total_coverage(recorded.values()), left_out, reads_batches=form is RewardForm.TRL),
    )


class _Rows:
    """Rows of data sets by their line; files are fetched once."""

    def __init__(self, context: Context) -> None:
        self._store = context.place.store
        self._folder = context.folder

    def at(self, file: File, lines: Iterable[int]) -> dict[int, Row]:
        assert file.format is not None, "data sets have a format"
        path, wanted = self._fetch(file), set(lines)
        found: dict[int, Row] = {}
        for row in read_rows(path, FileFormat(file.format)) if wanted else ():
            if row.line in wanted:
                found[row.line] = row
            if len(found) == len(wanted):
                break
        return found

    def _fetch(self, file: File) -> Path:
        path = self._folder / file.id
        if not path.exists():
            self._store.get_file(keys.data_file(file.id), path, sha256=file.sha256)
        return path


class _Again:
    """Grades as the job did, but for one term, until the time is over."""

    def __init__(self, asked: Rescore, found: Found, grader: Grader, context: Context, until: float) -> None:
        self._job_id: JobId = asked.job_id
        self._term = asked.term
        self._found = found
        self._grader = grader
        self._sessions = context.place.sessions
        self._rows = _Rows(context)
        self._until = until
        terms = found.spec.rewards
        self._group_size = found.spec.hyperparameters.num_generations
        self._settlement = Settlement(terms)
        self._weights = {term.name: term.weight for term in terms}
        self._graded_terms = [term.name for term in terms if formula_of(term) is None]

    def rollouts(self) -> tuple[list[Regraded], dict[int, RecordedStep]]:
        """Step by step, each as one batch; and what is on record of the steps that there was time for."""
        regraded: list[Regraded] = []
        recorded: dict[int, RecordedStep] = {}
        steps = self._found.choice.steps
        rows = self._rows.at(self._found.training, (one.row for outlines in steps.values() for one in outlines))
        for step, outlines in steps.items():
            if time.monotonic() >= self._until:
                break
            regraded += self._step(step, outlines, rows)
            recorded[step] = self._found.recorded[step]
        return regraded, recorded

    def evaluations(self) -> Iterator[EvaluationChange]:
        """As far as time and bytes go. For jobs with this one term."""
        left_bytes = MOST_BYTES - self._found.choice.size_bytes
        for name in self._found.evaluations:
            if time.monotonic() >= self._until:
                return
            record, size_bytes = self._read_evaluation(name, left_bytes)
            if record is not None:
                left_bytes -= size_bytes
                yield self._evaluation(record)

    def _step(self, step: int, outlines: Sequence[Outline], rows: Mapping[int, Row]) -> Iterator[Regraded]:
        """Only groups of which every rollout was tried."""
        with self._sessions() as session:
            indices = [outline.index for outline in outlines]
            records = rescoring.rollouts(session, self._job_id, step=step, indices=indices)
        batch = [StoredRollout.model_validate(record.rollout) for record in records]
        asked = [_rollout(rows, rollout.row, rollout.completion) for rollout in batch]
        grades = self._grader.grade(asked, step=step - 1, until=self._until)
        pairs = list(zip(batch, grades, strict=True))
        cut = {self._group(stored) for stored, grade in pairs if grade == NOT_TRIED}
        return (self._regraded(step, *pair) for pair in pairs if self._group(pair[0]) not in cut)

    def _group(self, stored: StoredRollout) -> int:
        return stored.index // self._group_size

    def _regraded(self, step: int, stored: StoredRollout, grade: Grade) -> Regraded:
        said = {name: _grade(stored.grades[name]) for name in self._graded_terms}
        counted = self._settlement.settle({**said, self._term: grade}).counted
        failed = {name for name, one in counted.items() if one.is_error}
        return Regraded(
            step=step,
            index=stored.index,
            group=self._group(stored),
            row=stored.row,
            prompt=stored.prompt[-MOST_TEXT:],
            completion=stored.completion[-MOST_TEXT:],
            old=stored.reward,
            new=combine(counted, self._weights),
            old_term=stored.grades[self._term].value,
            new_term=grade.value,
            error=_error(grade) if self._term in failed else None,
            other_error=bool(failed - {self._term}),
        )

    def _read_evaluation(self, name: str, most_bytes: int) -> tuple[EvaluationRecord | None, int]:
        """None where it is larger."""
        with self._sessions() as session:
            size_bytes = rescoring.evaluation_bytes(session, self._job_id, name)
            fits = size_bytes <= most_bytes
            return (progress.evaluation(session, self._job_id, name) if fits else None), size_bytes

    def _evaluation(self, record: EvaluationRecord) -> EvaluationChange:
        evaluation = Evaluation.model_validate(record.evaluation)
        rows = self._rows.at(self._found.held_out, (task.task for task in evaluation.tasks))
        answers = [(task.task, answer) for task in evaluation.tasks for answer in (task.greedy, *task.sampled)]
        asked = [_rollout(rows, line, answer.completion) for line, answer in answers]
        grades = self._grader.grade(asked, step=evaluation.step, until=self._until)
        tried = [(answer, one) for (_, answer), one in zip(answers, grades, strict=True) if one != NOT_TRIED]
        return evaluation_change(
            record.name,
            record.step,
            [(answer.reward, combine({self._term: grade}, self._weights)) for answer, grade in tried],
            errors=sum(grade.is_error for _, grade in tried),
            threshold=self._found.spec.pass_threshold,
            left_out=len(answers) - len(tried),
        )


def _rollout(rows: Mapping[int, Row], line: int, completion: str) -> Rollout:
    row = rows.get(line)
    if row is None:
        raise RescoredThingGone(f"The data set has no row at line {line} any more.")
    return Rollout(row.prompt, completion, [], row.columns)


def _grade(stored: RolloutGrade) -> Grade:
    return Grade(GradeOutcome(stored.outcome), stored.value, message=stored.error)


def _error(grade: Grade) -> str:
    return (grade.message or grade.outcome.value)[:MOST_TEXT]
