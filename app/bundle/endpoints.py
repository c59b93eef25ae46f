"""`GET /v1/fine_tuning/jobs/{id}/bundle`. `podium reproduce` runs a job again from what it answers."""

from typing import Annotated

from fastapi import Query, Request, Response

from app.auth import CallerDep
from app.bundle import service
from app.dependencies import SessionsDep, StoreDep
from app.downloads import DOWNLOAD_RESPONSES, download_assembled
from app.errors import error_responses
from app.jobs.endpoints import JobIdPath
from app.routing import resource_router

router = resource_router("/v1/fine_tuning/jobs/{job_id}", tag="artifacts")

_RESPONSES = {**DOWNLOAD_RESPONSES, **error_responses(409)}


@router.head("/bundle", include_in_schema=False, name="head_job_bundle")
@router.get("/bundle", summary="Download the reproduce bundle", response_class=Response, responses=_RESPONSES)
def download_job_bundle(
    request: Request,
    sessions: SessionsDep,
    store: StoreDep,
    caller: CallerDep,
    job_id: JobIdPath,
    data: Annotated[bool, Query(description="`false` leaves the data sets out; their digests stay.")] = True,
) -> Response:
    """One tar archive to run the job again from: spec, digests, versions, rewards, data, metrics, events, answers.

    The same state of a job always makes the same bytes. Credentials of rewards are never in it.
    """
    return download_assembled(request, service.bundle(sessions, store, caller.tenant_id, job_id, with_data=data))
