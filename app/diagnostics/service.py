"""Where a job stands: its row and its evidence, read together, and judged by pure functions."""

from collections.abc import Sequence

from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.diagnostics import replies, situation
from app.diagnostics.findings import findings
from app.diagnostics.replies import Diagnostics
from app.jobs.replies import unix
from app.jobs.service import require_job
from core.db import evidence, learning
from core.db.evidence import Evidence
from core.db.models import Job
from core.db.session import Sessions
from core.ids import JobId, TenantId
from core.learning.finding import LearningFinding
from core.learning.findings import learning_findings
from core.learning.numbers import RunNumbers
from core.settings import Settings
from core.spec import JobSpec


def diagnose(sessions: Sessions, settings: Settings, tenant_id: TenantId, job_id: JobId) -> Diagnostics:
    with sessions() as session:
        job = require_job(session, tenant_id, job_id)
        facts = evidence.gather(session, job)
        numbers = _numbers(session, job)
    learned = () if numbers is None else learning_findings(numbers)
    return diagnostics_of(job, facts, settings, learned)


def diagnostics_of(
    job: Job, facts: Evidence, settings: Settings, learned: Sequence[LearningFinding] = ()
) -> Diagnostics:
    return Diagnostics(
        job_id=job.id,
        at=unix(facts.at),
        status=job.status,
        status_reason=job.status_reason,
        now=situation.now(job, facts),
        queue=situation.queue(job, facts),
        run=situation.run(job, facts, lease_ttl_s=settings.lease_ttl_s),
        pause=situation.pause(job),
        newest_step=situation.newest_step(facts),
        durable_step=situation.durable_step(facts),
        steps_at_risk=situation.steps_at_risk(job),
        findings=findings(job, facts, settings),
        learning=[_shown(finding, job.id) for finding in learned],
    )


def _numbers(session: Session, job: Job) -> RunNumbers | None:
    """None for a spec of another version: nobody can say what was asked for."""
    try:
        spec = JobSpec.model_validate(job.spec)
    except ValidationError:
        return None
    return learning.run_numbers(session, job.id, spec)


def _shown(finding: LearningFinding, job_id: str) -> replies.LearningFinding:
    return replies.LearningFinding(
        code=finding.code,
        subject=finding.subject,
        severity=replies.Severity(finding.severity),
        message=finding.sentence,
        fix=finding.fix,
        try_next=finding.try_next,
        since_step=finding.since_step,
        links=None if finding.since_step is None else _links(job_id, finding.since_step),
        evidence=finding.evidence,
    )


def _links(job_id: str, step: int) -> replies.StepLinks:
    job = f"/v1/fine_tuning/jobs/{job_id}"
    return replies.StepLinks(metrics=f"{job}/metrics?from_step={step}", rollouts=f"{job}/rollouts?step={step}")
