"""`GET /v1/fine_tuning/jobs/{id}/learning`: which prompts could teach, and what was paid for those that could not."""

from app.auth import CallerDep
from app.dependencies import SessionsDep, SettingsDep
from app.errors import error_responses
from app.jobs.endpoints import JobIdPath
from app.jobs.progress_endpoints import Step, ToStep
from app.jobs.service import require_job
from app.learning.schemas import LearningReply
from app.routing import resource_router
from core.db import learning

router = resource_router("/v1/fine_tuning/jobs/{job_id}", tag="jobs")


@router.get("/learning", summary="See what of a job's steps taught", responses=error_responses(404))
def get_job_learning(
    sessions: SessionsDep,
    settings: SettingsDep,
    caller: CallerDep,
    job_id: JobIdPath,
    from_step: Step = 0,
    to_step: ToStep = None,
) -> LearningReply:
    """Mixed and silent groups by prompt and over time, and the share of the bill that bought no gradient."""
    with sessions() as session:
        job = require_job(session, caller.tenant_id, job_id)
        taught = learning.taught(session, job.id, from_step=from_step, to_step=to_step)
        gpus = job.spec.get("resources", {}).get("gpus", 1)
    hours = None if taught.bill is None else taught.bill.without_gradient_s * gpus / 3600
    return LearningReply(
        job_id=job.id,
        prompts=taught.prompts,
        windows=list(taught.windows),
        bill=taught.bill,
        usd_without_gradient=None if hours is None else round(hours * settings.gpu_price_usd_per_hour, 6),
    )
