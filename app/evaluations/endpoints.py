"""`/v1/fine_tuning/jobs/{id}/evaluations` and `.../comparison`."""

from typing import Annotated

from fastapi import Query

from app.auth import CallerDep
from app.dependencies import SessionsDep
from app.errors import error_responses
from app.evaluations import service
from app.evaluations.schemas import Comparison, EvaluationList
from app.jobs.endpoints import JobIdPath
from app.routing import resource_router
from core.ids import JobId
from core.results import Decoding

router = resource_router("/v1/fine_tuning/jobs/{job_id}", tag="jobs")

Name = Annotated[str, Query(max_length=64, description="`baseline`, `step-50`, ..., `final`.")]


@router.get("/evaluations", summary="List the evaluations of a job", responses=error_responses(404))
def list_job_evaluations(sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath) -> EvaluationList:
    """Every held-out evaluation so far, with its scores. The answers are artifacts: `evaluations/<name>.json`."""
    return service.list_evaluations(sessions, caller.tenant_id, job_id)


@router.get("/comparison", summary="Compare two evaluations", responses=error_responses(404, 409))
def compare_job_evaluations(
    sessions: SessionsDep,
    caller: CallerDep,
    job_id: JobIdPath,
    before: Name = "baseline",
    after: Name = "final",
    against: Annotated[
        JobId | None, Query(max_length=64, description="Another job: `before` is then an evaluation of that one.")
    ] = None,
    decoding: Annotated[Decoding | None, Query(description="Unset: the one of the job's own verdict.")] = None,
) -> Comparison:
    """The verdict on any two evaluations of the same held-out tasks: a checkpoint against the baseline, or two jobs."""
    return service.compare(
        sessions, caller.tenant_id, job_id, before=before, after=after, against=against, decoding=decoding
    )
