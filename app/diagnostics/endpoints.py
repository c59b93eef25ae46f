"""`GET /v1/fine_tuning/jobs/{id}/diagnostics`: what a job waits for, and what is worth knowing about it."""

from app.auth import CallerDep
from app.dependencies import SessionsDep, SettingsDep
from app.diagnostics import service
from app.diagnostics.replies import Diagnostics
from app.errors import error_responses
from app.jobs.endpoints import JobIdPath
from app.routing import resource_router

router = resource_router("/v1/fine_tuning/jobs/{job_id}", tag="jobs")


@router.get("/diagnostics", summary="Diagnose a job", responses=error_responses(404))
def get_job_diagnostics(
    sessions: SessionsDep, settings: SettingsDep, caller: CallerDep, job_id: JobIdPath
) -> Diagnostics:
    """What the job waits for right now and since when, which step is safe, and findings with what to do about each."""
    return service.diagnose(sessions, settings, caller.tenant_id, job_id)
