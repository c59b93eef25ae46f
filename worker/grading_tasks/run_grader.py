"""`run_grader`: one sample, graded by the terms of a grader as a job's rollouts would be.

All terms share the time that whoever asked waits: what has no answer by then says so, and is no number.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.db import rewards
from core.errors import InvalidReward, NotFound
from core.grading_tasks import GraderRan, RunGrader, TermGrade
from core.rows import PROMPT_COLUMNS
from core.spec import RewardTerm
from worker.grading.client import NOT_TRIED, GraderFailed
from worker.grading.gates import Settlement
from worker.grading.grades import Grade, GradeOutcome, Rollout, combine
from worker.grading.terms import AnyGrader, grader_of
from worker.grading_tasks.context import Context

WAIT_SHARE = 0.85
"""Of the time that somebody waits; the rest is for the way there and back."""
SPARE_S = 10.0
"""Of the task's time, for ending."""
BATCH_DEADLINE_S = 5.3
"""For one completion, which may take 5 s as in a run; shorter than there, because somebody waits."""
LOAD_DEADLINE_S = 8.0
OUTPUT_CHARS = 4000


class RewardVersionGone(NotFound):
    """A reward version that a grading task names is not in the ledger."""

    code = "reward_version_not_found"


def handle(request: dict[str, Any], context: Context) -> dict[str, Any]:
    asked = RunGrader.model_validate(request)
    rollout = None if asked.sample is None else _rollout(asked.item, asked.sample)
    until = time.monotonic() + min(WAIT_SHARE * asked.within_s, context.time_s - SPARE_S)
    said: dict[str, Grade] = {}
    printed: list[str] = []
    for term in asked.terms:
        grader = _grader(term, _write_source(term, asked.sources, context), until)
        if grader is not None:
            grade = _grade(grader, rollout, until)
            printed.append(grader.output.text())
            said |= {} if grade is None else {term.name: grade}
    reward, grades = (None, said) if rollout is None else _settle(asked.terms, said)
    shown = {name: _shown(grade) for name, grade in grades.items()}
    return GraderRan(reward=reward, grades=shown, output="".join(printed)[-OUTPUT_CHARS:]).model_dump(mode="json")


def _rollout(item: Mapping[str, Any], sample: str) -> Rollout:
    """With the prompt that the item has, if it has one, as a row of a data set would."""
    prompt = next((item[name] for name in PROMPT_COLUMNS if name in item), "")
    is_chat = isinstance(prompt, list) and all(
        isinstance(message, dict) and isinstance(message.get("content"), str) and isinstance(message.get("role"), str)
        for message in prompt
    )
    columns = {name: value for name, value in item.items() if name != "prompt"}
    return Rollout(prompt if is_chat or isinstance(prompt, str) else "", sample, [], columns)


def _write_source(term: RewardTerm, sources: Mapping[str, str], context: Context) -> Path:
    """The term's source, or its credentials, in the task's folder; a term may have neither."""
    path = context.folder / f"{term.name}.py"
    source = sources.get(term.name)
    if source is None and term.version_id is not None:
        with context.place.sessions() as session:
            version = rewards.version(session, term.version_id)
        if version is None:
            raise RewardVersionGone("The reward's version is gone.", param="grader")
        source = version.source
    if source is not None:
        path.touch(mode=0o600)  # credentials may be in it
        path.write_text(source, encoding="utf-8")
    return path


def _grader(term: RewardTerm, source: Path, until: float) -> AnyGrader | None:
    """None for a formula, which is computed from the others."""
    load_deadline_s = max(0.0, min(LOAD_DEADLINE_S, until - time.monotonic()))
    return grader_of(term, source, batch_deadline_s=BATCH_DEADLINE_S, load_deadline_s=load_deadline_s)


def _grade(grader: AnyGrader, rollout: Rollout | None, until: float) -> Grade | None:
    """What the term says, or why it cannot be loaded; None for one that was only to be loaded, and was."""
    if time.monotonic() >= until:
        return NOT_TRIED
    try:
        with grader:
            return None if rollout is None else grader.grade([rollout], until=until)[0]
    except InvalidReward as error:
        return Grade(GradeOutcome.USER_ERROR, message=error.message)
    except GraderFailed as error:
        return Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message=error.message)


def _settle(terms: tuple[RewardTerm, ...], said: Mapping[str, Grade]) -> tuple[float | None, Mapping[str, Grade]]:
    settled = Settlement(terms).settle(said)
    return combine(settled.counted, {term.name: term.weight for term in terms}), settled.grades


def _shown(grade: Grade) -> TermGrade:
    return TermGrade(
        outcome=grade.outcome.value,
        value=grade.value,
        metrics=dict(grade.metrics),
        message=grade.message,
        traceback=grade.traceback,
        timed_out=grade.timed_out,
        latency_s=grade.latency_s,
    )
