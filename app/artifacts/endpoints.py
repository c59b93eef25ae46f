"""Downloads of what a job made. `Range`, `HEAD` and `If-None-Match` work everywhere."""

from typing import Annotated

from fastapi import Path, Request, Response

from app.artifacts import service
from app.artifacts.schemas import ArtifactList, ArtifactObject
from app.auth import CallerDep
from app.dependencies import SessionsDep, StoreDep
from app.downloads import DOWNLOAD_RESPONSES, download, download_assembled
from app.errors import error_responses
from app.jobs.checkpoint_endpoints import StepPath
from app.jobs.endpoints import JobIdPath
from app.routing import resource_router

router = resource_router("/v1/fine_tuning/jobs/{job_id}", tag="artifacts")

_RESPONSES = {**DOWNLOAD_RESPONSES, **error_responses(409)}


@router.get("/artifacts", summary="List the artifacts of a job", responses=error_responses(404))
def list_job_artifacts(sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath) -> ArtifactList:
    """Every file that the job has made so far, with its digest."""
    rows = service.artifacts(sessions, caller.tenant_id, job_id)
    return ArtifactList(data=[ArtifactObject.of(row) for row in rows])


@router.head("/artifacts/{name:path}", include_in_schema=False, name="head_job_artifact")
@router.get("/artifacts/{name:path}", summary="Download an artifact", response_class=Response, responses=_RESPONSES)
def download_job_artifact(
    request: Request,
    sessions: SessionsDep,
    store: StoreDep,
    caller: CallerDep,
    job_id: JobIdPath,
    name: Annotated[str, Path(description="As listed, e.g. `adapter/adapter_model.safetensors`.")],
) -> Response:
    """One file. On S3 this redirects."""
    return download(request, store, service.artifact(sessions, caller.tenant_id, job_id, name))


@router.head("/results", include_in_schema=False, name="head_job_results")
@router.get("/results", summary="Download results.json", response_class=Response, responses=_RESPONSES)
def download_job_results(
    request: Request, sessions: SessionsDep, store: StoreDep, caller: CallerDep, job_id: JobIdPath
) -> Response:
    """The verdict and the evidence behind it. Written last: what it names exists."""
    return download(request, store, service.artifact(sessions, caller.tenant_id, job_id, service.RESULTS))


@router.head("/adapter", include_in_schema=False, name="head_job_adapter")
@router.get("/adapter", summary="Download the adapter", response_class=Response, responses=_RESPONSES)
def download_job_adapter(
    request: Request, sessions: SessionsDep, store: StoreDep, caller: CallerDep, job_id: JobIdPath
) -> Response:
    """The folder `adapter/` as one tar archive: `tar xf` it, and PEFT or vLLM load it."""
    return download_assembled(request, service.adapter(sessions, store, caller.tenant_id, job_id))


@router.head("/checkpoints/{step}/adapter", include_in_schema=False, name="head_job_checkpoint_adapter")
@router.get(
    "/checkpoints/{step}/adapter",
    summary="Download the adapter of a checkpoint",
    response_class=Response,
    responses=_RESPONSES,
)
def download_job_checkpoint_adapter(
    request: Request, sessions: SessionsDep, store: StoreDep, caller: CallerDep, job_id: JobIdPath, step: StepPath
) -> Response:
    """As it was at that step, while the job still runs or after it failed."""
    content = service.checkpoint_adapter(sessions, store, caller.tenant_id, job_id, step)
    return download_assembled(request, content)
