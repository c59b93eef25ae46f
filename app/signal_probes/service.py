"""The use cases of signal probes. What is checked and resolved is the job's; a probe is only another kind of row."""

from collections.abc import Callable, Sequence

import structlog
from fastapi import Response
from sqlalchemy.orm import Session

from app.idempotency import Idempotency, located
from app.jobs import service as job_service
from app.jobs.replies import JobPreview
from app.jobs.resolve import Resolved
from app.jobs.schemas import JobCreate
from app.signal_probes.schemas import SignalProbeCreate, SignalProbeDetail, SignalProbeObject
from core.db import jobs, progress, signal_probes
from core.db.models import Job, SignalProbe
from core.db.session import Sessions
from core.errors import Conflict, NotFound
from core.ids import JobId, TenantId, new_signal_probe_id
from core.settings import Settings
from core.signal_report import DEFAULT_PROMPTS, ProbeSize
from core.status import JobStatus

COLLECTION = "/v1/signal_probes"

log = structlog.get_logger()


class SignalProbeNotFound(NotFound):
    code = "signal_probe_not_found"
    default_fix = "Check the id; GET /v1/signal_probes lists your probes."


class SignalProbeNotCancellable(Conflict):
    """A probe that has ended."""

    code = "signal_probe_not_cancellable"
    default_fix = "Nothing needs to be done: it holds no worker."


def create(
    sessions: Sessions, settings: Settings, tenant_id: TenantId, body: SignalProbeCreate, once: Idempotency
) -> Response:
    """Record a queued probe of the job that `body` is."""
    if (first := once.earlier_answer(sessions)) is not None:
        return located(first, COLLECTION)
    resolved = job_service.preview(sessions, settings, tenant_id, body)
    size = _size(resolved, prompts=body.prompts, samples=body.samples)
    with sessions.begin() as session:
        if (first := once.first_answer(session)) is not None:
            return located(first, COLLECTION)
        job, probe = _add(session, tenant_id, body, resolved, size)
        answer = once.answer(session, 201, SignalProbeObject.of(job, probe))
    log.info("signal_probe_created", job_id=job.id, model=job.model, prompts=size.prompts, samples=size.samples)
    return located(answer, COLLECTION)


def preview_with_probe(
    sessions: Sessions, tenant_id: TenantId, body: JobCreate, preview: Callable[[], Resolved], once: Idempotency
) -> Response:
    """The job's preview, with a probe of exactly this job recorded, which it names."""
    answer = once.earlier_answer(sessions)
    if answer is None:
        resolved = preview()
        size = _size(resolved, prompts=DEFAULT_PROMPTS, samples=None)
        with sessions.begin() as session:
            answer = once.first_answer(session)
            if answer is None:
                job, _ = _add(session, tenant_id, body, resolved, size)
                answer = once.answer(session, 200, JobPreview.of(resolved, signal_probe=job.id))
    shown = JobPreview.model_validate_json(bytes(answer.body))
    answer.headers["ETag"] = job_service.etag_of(shown.spec)
    return answer


def page(
    sessions: Sessions, tenant_id: TenantId, *, after: JobId | None, limit: int, status: JobStatus | None
) -> Sequence[SignalProbeObject]:
    with sessions() as session:
        found = signal_probes.page(session, tenant_id, after=after, limit=limit, status=status)
        return [SignalProbeObject.of(job, probe) for job, probe in found]


def get(sessions: Sessions, tenant_id: TenantId, probe_id: JobId) -> SignalProbeDetail:
    with sessions() as session:
        job, probe = _require(session, tenant_id, probe_id)
        return SignalProbeDetail.with_report(job, probe, held_s=progress.held_seconds(session, job.id))


def cancel(sessions: Sessions, tenant_id: TenantId, probe_id: JobId) -> SignalProbeObject:
    """Record the wish. What no worker holds is cancelled at once; a running probe when its process has stopped."""
    with sessions.begin() as session:
        job, probe = _require(session, tenant_id, probe_id)
        if not jobs.request_cancel(session, job):
            raise SignalProbeNotCancellable(f"The probe is already {job.status}.", param="probe_id")
        session.refresh(job)
        return SignalProbeObject.of(job, probe)


def _require(session: Session, tenant_id: TenantId, probe_id: JobId) -> tuple[Job, SignalProbe]:
    found = signal_probes.get_owned(session, tenant_id, probe_id)
    if found is None:
        raise SignalProbeNotFound(f"There is no signal probe {probe_id[:64]!r}.", param="probe_id")
    return found


def _size(resolved: Resolved, *, prompts: int, samples: int | None) -> ProbeSize:
    return ProbeSize(prompts=prompts, samples=samples or resolved.spec.hyperparameters.num_generations)


def _add(
    session: Session, tenant_id: TenantId, body: JobCreate, resolved: Resolved, size: ProbeSize
) -> tuple[Job, SignalProbe]:
    job_service.require_files(session, tenant_id, body)
    job_service.require_checkpoint(session, resolved)
    return signal_probes.add(
        session,
        new_signal_probe_id(),
        tenant_id=tenant_id,
        spec=resolved.spec,
        size=size,
        method=body.method.model_dump(mode="json", exclude_unset=True),
        metadata=body.metadata or {},
        inline_sources=resolved.inline_sources,
    )
