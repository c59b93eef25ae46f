"""A run's numbers as the ledger has them, for `core.learning`, and the findings that were told of it."""

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db import events, progress
from core.db.models import EvaluationRecord, GroupsRecord, JobEvent, StepMetrics
from core.ids import JobId
from core.learning.bill import bill_of
from core.learning.finding import FindingKey, LearningFinding
from core.learning.groups import StepGroups, prompts_of, windows_of
from core.learning.numbers import HeldOutScore, RunNumbers, StepNumbers
from core.results import Evaluation
from core.run_facts import asked_of, held_out_score
from core.signal import GroupOutcome
from core.spec import JobSpec
from core.taught import Taught

MOST_STEPS = 10_000
"""A longer run is judged by its newest: what is wrong now began in them, or is still true."""
RAISED, HEALED = "finding_raised", "finding_healed"
"""Codes of events."""


def run_numbers(session: Session, job_id: JobId, spec: JobSpec) -> RunNumbers:
    steps = new_steps(session, job_id, after=0)
    return RunNumbers(steps, new_scores(session, job_id, spec, known=()), asked_of(spec))


def new_steps(session: Session, job_id: JobId, *, after: int, to_step: int | None = None) -> list[StepNumbers]:
    """In order, up to where the job is: what an earlier attempt did beyond that is superseded."""
    newest = (
        select(StepMetrics.step, StepMetrics.metrics)
        .where(
            StepMetrics.job_id == job_id,
            StepMetrics.step > after,
            StepMetrics.step <= progress.reached(job_id, to_step),
        )
        .order_by(StepMetrics.step.desc())
        .limit(MOST_STEPS)
    )
    return [StepNumbers(step, metrics) for step, metrics in session.execute(newest)][::-1]


def new_scores(session: Session, job_id: JobId, spec: JobSpec, *, known: Collection[str]) -> list[HeldOutScore]:
    """Of the evaluations whose names are not `known`, in order, up to where the job is."""
    query = select(EvaluationRecord).where(
        EvaluationRecord.job_id == job_id,
        EvaluationRecord.name.not_in(known),
        EvaluationRecord.step <= progress.reached(job_id),
    )
    records = session.scalars(query.order_by(EvaluationRecord.step, EvaluationRecord.created_at))
    return [held_out_score(one.name, Evaluation.model_validate(one.evaluation), spec) for one in records]


def taught(session: Session, job_id: JobId, *, from_step: int = 0, to_step: int | None = None) -> Taught:
    """What these steps taught; of more than `MOST_STEPS`, the newest."""
    newest = (
        select(GroupsRecord.step, GroupsRecord.rows)
        .where(
            GroupsRecord.job_id == job_id,
            GroupsRecord.step >= from_step,
            GroupsRecord.step <= progress.reached(job_id, to_step),
        )
        .order_by(GroupsRecord.step.desc())
        .limit(MOST_STEPS)
    )
    groups = [
        StepGroups(step, {GroupOutcome(outcome): lines for outcome, lines in rows.items()})
        for step, rows in session.execute(newest)
    ][::-1]
    steps = new_steps(session, job_id, after=from_step - 1, to_step=to_step)
    return Taught(prompts=prompts_of(groups), windows=windows_of(groups), bill=bill_of(steps))


def open_findings(session: Session, job_id: JobId) -> dict[FindingKey, int]:
    """What was told and has not healed since, whatever attempt told it: at which step each was found."""
    query = select(JobEvent.code, JobEvent.data).where(JobEvent.job_id == job_id, JobEvent.code.in_((RAISED, HEALED)))
    found: dict[FindingKey, int] = {}
    for code, data in session.execute(query.order_by(JobEvent.seq)):
        key = data["finding"], data["subject"]
        if code == RAISED:
            found[key] = data["step"]
        else:
            found.pop(key, None)
    return found


def tell_finding(session: Session, job_id: JobId, finding: LearningFinding, *, step: int) -> None:
    """`step`: the newest when it was found."""
    data = {
        "finding": finding.code,
        "subject": finding.subject,
        "severity": finding.severity,
        "step": step,
        "since_step": finding.since_step,
        "evidence": finding.evidence,
        "fix": finding.fix,
        "try_next": finding.try_next,
    }
    events.add(session, job_id, code=RAISED, level="warn", message=finding.sentence, data=data)


def tell_healed(session: Session, job_id: JobId, key: FindingKey, *, step: int) -> None:
    code, subject = key
    message = f"The finding `{code}`{f' of `{subject}`' if subject else ''} no longer holds."
    events.add(session, job_id, code=HEALED, message=message, data={"finding": code, "subject": subject, "step": step})
