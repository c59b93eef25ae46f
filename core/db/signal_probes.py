"""Signal probes: rows of `jobs` of their own kind, so that leases, attempts, wishes and events are those of jobs."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db import jobs
from core.db.leases import Lease
from core.db.models import Job, SignalProbe
from core.ids import JobId, TenantId
from core.signal_report import ProbeSize, SignalReport
from core.spec import JobSpec
from core.status import JobKind, JobStatus


def add(
    session: Session,
    probe_id: JobId,
    *,
    tenant_id: TenantId,
    spec: JobSpec,
    size: ProbeSize,
    method: Mapping[str, Any],
    metadata: Mapping[str, str],
    inline_sources: Mapping[str, str],
) -> tuple[Job, SignalProbe]:
    """Record a queued probe of the job that `spec` is."""
    job = jobs.add(
        session,
        probe_id,
        kind=JobKind.SIGNAL_PROBE,
        tenant_id=tenant_id,
        spec=spec,
        model=spec.model.name,
        method=method,
        metadata=metadata,
        inline_sources=inline_sources,
    )
    probe = SignalProbe(job_id=probe_id, prompts=size.prompts, samples=size.samples)
    session.add(probe)
    session.flush()
    return job, probe


def get_owned(session: Session, tenant_id: TenantId, probe_id: JobId) -> tuple[Job, SignalProbe] | None:
    """The probe, if it is the tenant's."""
    job = jobs.get_owned(session, tenant_id, probe_id, kind=JobKind.SIGNAL_PROBE)
    return None if job is None else (job, session.get_one(SignalProbe, job.id))


def page(
    session: Session, tenant_id: TenantId, *, after: JobId | None, limit: int, status: JobStatus | None
) -> Sequence[tuple[Job, SignalProbe]]:
    """Newest first."""
    kind = JobKind.SIGNAL_PROBE
    found = jobs.page(session, tenant_id, after=after, limit=limit, status=status, kind=kind)
    probes = session.scalars(select(SignalProbe).where(SignalProbe.job_id.in_([job.id for job in found])))
    by_id = {probe.job_id: probe for probe in probes}
    return [(job, by_id[job.id]) for job in found]


def size_of(session: Session, probe_id: JobId) -> ProbeSize:
    probe = session.get_one(SignalProbe, probe_id)
    return ProbeSize(prompts=probe.prompts, samples=probe.samples)


def set_report(session: Session, lease: Lease, report: SignalReport) -> None:
    """Call `leases.hold` first in the same transaction."""
    values = {"report": report.model_dump(mode="json")}
    session.execute(update(SignalProbe).where(SignalProbe.job_id == lease.job_id).values(values))
