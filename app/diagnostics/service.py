"""Where a job stands: its row and its evidence, read together, and judged by pure functions."""

from app.diagnostics import situation
from app.diagnostics.findings import findings
from app.diagnostics.replies import Diagnostics
from app.jobs.replies import unix
from app.jobs.service import require_job
from core.db import evidence
from core.db.evidence import Evidence
from core.db.models import Job
from core.db.session import Sessions
from core.ids import JobId, TenantId
from core.settings import Settings


def diagnose(sessions: Sessions, settings: Settings, tenant_id: TenantId, job_id: JobId) -> Diagnostics:
    with sessions() as session:
        job = require_job(session, tenant_id, job_id)
        facts = evidence.gather(session, job)
    return diagnostics_of(job, facts, settings)


def diagnostics_of(job: Job, facts: Evidence, settings: Settings) -> Diagnostics:
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
    )
