"""`/v1/fine_tuning/jobs`: submit (or preview), list, read; cancel, pause, resume."""

import re
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Query, Request, Response
from fastapi.responses import JSONResponse

from app.auth import CallerDep
from app.dependencies import SessionsDep, SettingsDep
from app.errors import error_responses
from app.idempotency import IdempotencyDep
from app.jobs import service, wishes
from app.jobs.replies import JobObject, JobPreview
from app.jobs.reports import with_reports
from app.jobs.resolve import Resolved
from app.jobs.schemas import JobCreate
from app.jobs.service import Submission
from app.paging import ListReply, PageDep, list_reply
from app.rewards.reports import ReportsDep
from app.routing import resource_router
from app.signal_probes.service import preview_with_probe
from core.errors import InvalidRequest, Problem
from core.ids import JobId
from core.status import JobStatus

router = resource_router("/v1/fine_tuning/jobs", tag="jobs")

_METADATA = re.compile(r"metadata\[(?P<key>[^\[\]]{1,64})\]")
_METADATA_PARAMETER: dict[str, Any] = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "`metadata[team]=search`: only jobs with these pairs.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}


JobIdPath = Annotated[JobId, Path(description="`ftjob-...`")]


@router.post(
    "",
    status_code=201,
    response_model=JobObject,
    summary="Create a job",
    responses={
        200: {"model": JobPreview, "description": "With `dry_run`: what would run. Its ETag is for `If-Match`."},
        **error_responses(404, 409, 412, 413, 415),
    },
)
def create_job(
    sessions: SessionsDep,
    settings: SettingsDep,
    caller: CallerDep,
    reports: ReportsDep,
    once: IdempotencyDep,
    body: JobCreate,
    dry_run: Annotated[bool, Query(description="Check everything, resolve every default, create nothing.")] = False,
    signal_probe: Annotated[
        bool, Query(description="With `dry_run`: also record a signal probe of this job, and name it in the reply.")
    ] = False,
    if_match: Annotated[str | None, Header(description="ETag of a preview: run exactly that, or answer 412.")] = None,
) -> Response:
    """Record a job. It is checked whole before: files, columns, rewards, model; all problems come at once."""

    def preview() -> Resolved:
        found = service.preview(sessions, settings, caller.tenant_id, body, reports_count=False)
        return with_reports(reports, caller.tenant_id, found)

    if signal_probe:
        if not dry_run:
            fix = "Add dry_run=true; or create the probe by itself, with POST /v1/signal_probes."
            raise InvalidRequest.of([Problem("signal_probe", "goes with `dry_run` only", "conflicting_fields", fix)])
        return preview_with_probe(sessions, caller.tenant_id, body, preview, once)
    if dry_run:
        resolved = preview()
        reply = JobPreview.of(resolved)
        return JSONResponse(reply.model_dump(mode="json"), headers={"ETag": service.etag_of(resolved.spec)})
    return service.submit(sessions, settings, Submission(caller.tenant_id, body, if_match), once)


def _metadata_filter(request: Request) -> dict[str, str]:
    pairs = ((_METADATA.fullmatch(name), value) for name, value in request.query_params.multi_items())
    return {match["key"]: value for match, value in pairs if match}


@router.get("", summary="List jobs", openapi_extra={"parameters": [_METADATA_PARAMETER]})
def list_jobs(
    sessions: SessionsDep,
    caller: CallerDep,
    page: PageDep,
    metadata: Annotated[dict[str, str], Depends(_metadata_filter)],
    status: Annotated[JobStatus | None, Query(description="Only jobs in this status.")] = None,
) -> ListReply[JobObject]:
    """Newest first."""
    after = JobId(page.after) if page.after else None
    found = service.page(sessions, caller.tenant_id, after=after, limit=page.fetch, status=status, metadata=metadata)
    return list_reply(found, page, lambda job: job)


@router.get("/{job_id}", summary="Get a job", responses=error_responses(404))
def get_job(sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath) -> JobObject:
    """Its status, where it is, and what it runs."""
    return service.get(sessions, caller.tenant_id, job_id)


@router.post("/{job_id}/cancel", summary="Cancel a job", responses=error_responses(404, 409))
def cancel_job(sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath) -> JobObject:
    """Record the wish. A waiting job is cancelled at once, a running one when its trainer has stopped."""
    return wishes.cancel(sessions, caller.tenant_id, job_id)


@router.post("/{job_id}/pause", summary="Pause a job", responses=error_responses(404, 409))
def pause_job(sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath) -> JobObject:
    """Record the wish. A queued job is paused at once, a running one when its trainer has saved and stopped.

    `progress.durable_step` is the step that is safe. Pausing a paused job changes nothing.
    """
    return wishes.pause(sessions, caller.tenant_id, job_id)


@router.post("/{job_id}/resume", summary="Resume a job", responses=error_responses(404, 409))
def resume_job(sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath) -> JobObject:
    """Queue a paused job again: any worker goes on from its newest checkpoint that is whole.

    While a pause has not taken effect yet, this takes it back.
    """
    return wishes.resume(sessions, caller.tenant_id, job_id)
