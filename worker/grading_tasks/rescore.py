"""`rescore`: a job's stored rollouts and held-out answers, graded by another version of one of its rewards.

The other terms keep what they said at the time; weights, gates and formulas are the job's own.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from core import keys
from core.db import files, jobs, progress, rewards
from core.db.models import EvaluationRecord, File, Job, RewardVersion, RolloutRecord
from core.db.rescoring import rollout_counts
from core.errors import NotFound
from core.ids import FileId
from core.rescoring import MOST_TEXT, EvaluationChange, Regraded, Rescore, choose_steps, compare, evaluation_change
from core.results import Evaluation
from core.reward_source import RewardEntry
from core.rows import FileFormat, Row, read_rows
from core.spec import JobSpec
from worker.grading.client import Grader
from worker.grading.gates import Settlement, formula_of
from worker.grading.grades import Grade, GradeOutcome, Rollout, combine
from worker.grading_tasks.context import Context
from worker.run_directory import Rollout as StoredRollout
from worker.run_directory import RolloutGrade

ITEM_DEADLINE_S = 2.0
BATCH_DEADLINE_S = 6.0
"""A call of the grader takes at most three of these."""
LOAD_DEADLINE_S = 10.0
SPARE_S = 25.0
"""Of the task's time: no batch begins within it."""

_ENTRY = TypeAdapter(RewardEntry)


class RescoredThingGone(NotFound):
    """The job, its data set or the reward's version is not there any more."""

    code = "rescored_thing_gone"
    default_fix = "A job's rows are needed to grade its rollouts again: keep its files."


@dataclass(frozen=True, slots=True)
class Found:
    """What is read of the ledger."""

    spec: JobSpec
    version: RewardVersion
    training: File
    held_out: File
    rollouts: Sequence[RolloutRecord]
    left_out: int
    evaluations: Sequence[EvaluationRecord]


def handle(request: dict[str, Any], context: Context) -> dict[str, Any]:
    asked = Rescore.model_validate(request)
    deadline = time.monotonic() + context.time_s - SPARE_S
    found = _look_up(asked, context)
    source = context.folder / "reward.py"
    source.write_text(found.version.source, encoding="utf-8")
    entry = _ENTRY.validate_python(found.version.entry)
    grader = Grader(
        source,
        entry_point=entry.name,
        form=entry.form,
        batch_deadline_s=BATCH_DEADLINE_S,
        item_deadline_s=ITEM_DEADLINE_S,
        load_deadline_s=LOAD_DEADLINE_S,
    )
    with grader:
        again = _Again(found.spec, asked.term, grader, _Rows(context), lambda: time.monotonic() < deadline)
        regraded = list(again.rollouts(found))
        evaluations = tuple(again.evaluations(found)) if len(found.spec.rewards) == 1 else None
    left_out = found.left_out + len(found.rollouts) - len(regraded)
    threshold = found.spec.pass_threshold
    report = compare(regraded, threshold=threshold, left_out=left_out, evaluations=evaluations)
    return report.model_dump(mode="json")


def _look_up(asked: Rescore, context: Context) -> Found:
    with context.place.sessions() as session:
        job = jobs.get_owned(session, context.tenant_id, asked.job_id)
        version = rewards.version(session, asked.version_id)
        if job is None or version is None:
            raise RescoredThingGone("The job or the reward's version is gone.")
        counts = rollout_counts(session, job.id, from_step=asked.from_step, to_step=asked.to_step)
        chosen = choose_steps(counts, asked.limit)
        evaluations = progress.evaluations(session, job.id)
        training, held_out = (files.get_owned(session, context.tenant_id, file_id) for file_id in _files_of(job))
        rollouts = [record for step in chosen for record in progress.rollouts(session, job.id, step=step)]
    if training is None or held_out is None:
        raise RescoredThingGone("A data set of the job is gone.")
    wanted = [record for record in evaluations if asked.from_step <= record.step <= asked.to_step]
    left_out = sum(counts.values()) - len(rollouts)
    return Found(JobSpec.model_validate(job.spec), version, training, held_out, rollouts, left_out, wanted)


def _files_of(job: Job) -> tuple[FileId, FileId]:
    """Of the training rows and the held-out rows, which may be a part of the same file."""
    return job.training_file, job.validation_file or job.training_file


class _Rows:
    """Rows of data sets by their line, fetched once."""

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
    """Grades as the job did, but for one term."""

    def __init__(self, spec: JobSpec, term: str, grader: Grader, rows: _Rows, has_time: Callable[[], bool]) -> None:
        self._spec = spec
        self._term = term
        self._grader = grader
        self._rows = rows
        self._has_time = has_time
        self._settlement = Settlement(spec.rewards)
        self._weights = {term.name: term.weight for term in spec.rewards}
        self._graded_terms = [term.name for term in spec.rewards if formula_of(term) is None]

    def rollouts(self, found: Found) -> Iterator[Regraded]:
        """Step by step, each as the one batch that it was; as far as the time goes."""
        stored = [(record.step, StoredRollout.model_validate(record.rollout)) for record in found.rollouts]
        rows = self._rows.at(found.training, (rollout.row for _, rollout in stored))
        for step in dict.fromkeys(step for step, _ in stored):
            if not self._has_time():
                return
            batch = [rollout for at, rollout in stored if at == step]
            asked = [_rollout(rows, rollout.row, rollout.completion) for rollout in batch]
            grades = self._grader.grade(asked, step=step - 1)
            yield from (self._regraded(step, *pair) for pair in zip(batch, grades, strict=True))

    def evaluations(self, found: Found) -> Iterator[EvaluationChange]:
        """Those that the verdict compares first; as far as the time goes. For jobs with this one term."""
        for record in sorted(found.evaluations, key=lambda record: record.name not in {"baseline", "final"}):
            if self._has_time():
                yield self._evaluation(record, found.held_out)

    def _regraded(self, step: int, stored: StoredRollout, grade: Grade) -> Regraded:
        said = {name: _grade(stored.grades[name]) for name in self._graded_terms}
        counted = self._settlement.settle({**said, self._term: grade}).counted
        return Regraded(
            step=step,
            index=stored.index,
            group=stored.index // self._spec.hyperparameters.num_generations,
            row=stored.row,
            prompt=stored.prompt,
            completion=stored.completion,
            old=stored.reward,
            new=combine(counted, self._weights),
            old_term=stored.grades[self._term].value,
            new_term=grade.value,
            error=_error(grade) if counted[self._term].is_error else None,
        )

    def _evaluation(self, record: EvaluationRecord, file: File) -> EvaluationChange:
        evaluation = Evaluation.model_validate(record.evaluation)
        rows = self._rows.at(file, (task.task for task in evaluation.tasks))
        answers = [(task.task, answer) for task in evaluation.tasks for answer in (task.greedy, *task.sampled)]
        asked = [_rollout(rows, line, answer.completion) for line, answer in answers]
        grades = self._grader.grade(asked, step=evaluation.step)
        pairs = [
            (answer.reward, combine({self._term: grade}, self._weights))
            for (_, answer), grade in zip(answers, grades, strict=True)
        ]
        errors = sum(grade.is_error for grade in grades)
        threshold = self._spec.pass_threshold
        return evaluation_change(record.name, record.step, pairs, errors=errors, threshold=threshold)


def _rollout(rows: Mapping[int, Row], line: int, completion: str) -> Rollout:
    row = rows.get(line)
    if row is None:
        raise RescoredThingGone(f"The data set has no row at line {line} any more.")
    return Rollout(row.prompt, completion, [], row.columns)


def _grade(stored: RolloutGrade) -> Grade:
    return Grade(GradeOutcome(stored.outcome), stored.value, message=stored.error)


def _error(grade: Grade) -> str:
    return (grade.message or grade.outcome.value)[:MOST_TEXT]
