"""`/v1/signal_probes`: how much of a job would teach something, asked before it is paid for."""

from typing import Annotated

from fastapi import Path, Query, Response

from app.auth import CallerDep
from app.dependencies import SessionsDep, SettingsDep
from app.errors import error_responses
from app.idempotency import IdempotencyDep
from app.paging import ListReply, PageDep, list_reply
from app.routing import resource_router
from app.signal_probes import service
from app.signal_probes.schemas import SignalProbeCreate, SignalProbeDetail, SignalProbeObject
from core.ids import JobId
from core.status import JobStatus

router = resource_router("/v1/signal_probes", tag="signal probes")

ProbeIdPath = Annotated[JobId, Path(description="`sigprobe-...`")]


@router.post(
    "",
    status_code=201,
    response_model=SignalProbeObject,
    summary="Create a signal probe",
    responses=error_responses(404, 409, 413, 415),
)
def create_signal_probe(
    sessions: SessionsDep, settings: SettingsDep, caller: CallerDep, once: IdempotencyDep, body: SignalProbeCreate
) -> Response:
    """Sample and grade groups of completions as the job in the body would at its first step, and train nothing."""
    return service.create(sessions, settings, caller.tenant_id, body, once)


@router.get("", summary="List signal probes")
def list_signal_probes(
    sessions: SessionsDep,
    caller: CallerDep,
    page: PageDep,
    status: Annotated[JobStatus | None, Query(description="Only probes in this status.")] = None,
) -> ListReply[SignalProbeObject]:
    """Newest first, without their reports."""
    after = JobId(page.after) if page.after else None
    found = service.page(sessions, caller.tenant_id, after=after, limit=page.fetch, status=status)
    return list_reply(found, page, lambda probe: probe)


@router.get("/{probe_id}", summary="Get a signal probe", responses=error_responses(404))
def get_signal_probe(sessions: SessionsDep, caller: CallerDep, probe_id: ProbeIdPath) -> SignalProbeDetail:
    """Its status, and its report once it has succeeded."""
    return service.get(sessions, caller.tenant_id, probe_id)


@router.post("/{probe_id}/cancel", summary="Cancel a signal probe", responses=error_responses(404, 409))
def cancel_signal_probe(sessions: SessionsDep, caller: CallerDep, probe_id: ProbeIdPath) -> SignalProbeObject:
    """Record the wish. A waiting probe is cancelled at once, a running one when its process has stopped."""
    return service.cancel(sessions, caller.tenant_id, probe_id)
