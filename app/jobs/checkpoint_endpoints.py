"""`/v1/fine_tuning/jobs/{id}/checkpoints`: what a job can go on from, and which of it stays for good."""

from typing import Annotated

from fastapi import Path

from app.auth import CallerDep
from app.dependencies import SessionsDep
from app.errors import error_responses
from app.jobs import checkpoints
from app.jobs.endpoints import JobIdPath
from app.jobs.progress_replies import CheckpointObject
from app.paging import ListReply, PageDep, list_reply
from app.routing import resource_router
from core.ids import CheckpointId

router = resource_router("/v1/fine_tuning/jobs/{job_id}/checkpoints", tag="jobs")

StepPath = Annotated[int, Path(ge=0, lt=2**31, description="A durable step of the job.")]


@router.get("", summary="List the checkpoints of a job", responses=error_responses(404))
def list_job_checkpoints(
    sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath, page: PageDep
) -> ListReply[CheckpointObject]:
    """Durable checkpoints, newest first; without those that retention has given up or that are damaged."""
    after = None if page.after is None else CheckpointId(page.after)
    found = checkpoints.page(sessions, caller.tenant_id, job_id, after=after, limit=page.fetch)
    return list_reply(found, page, lambda checkpoint: checkpoint)


@router.post("/{step}/pin", summary="Pin a checkpoint", responses=error_responses(404))
def pin_job_checkpoint(sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath, step: StepPath) -> CheckpointObject:
    """Keep it for good. Pinning twice changes nothing."""
    return checkpoints.pin(sessions, caller.tenant_id, job_id, step)


@router.post("/{step}/unpin", summary="Unpin a checkpoint", responses=error_responses(404))
def unpin_job_checkpoint(
    sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath, step: StepPath
) -> CheckpointObject:
    """Leave it to retention again, which spares it as long as a job that began from it may have to read it."""
    return checkpoints.unpin(sessions, caller.tenant_id, job_id, step)
