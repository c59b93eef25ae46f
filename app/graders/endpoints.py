"""`/v1/fine_tuning/alpha/graders`: try a grader on one sample before any GPU starts."""

from app.auth import CallerDep
from app.dependencies import GradingDep, SessionsDep, SettingsDep
from app.errors import error_responses
from app.graders import service
from app.graders.schemas import GraderRun, GraderRunReply, GraderValidate, GraderValidateReply
from app.routing import resource_router

router = resource_router("/v1/fine_tuning/alpha/graders", tag="graders")


@router.post("/run", summary="Run a grader", responses=error_responses(404, 409, 413, 415))
def run_grader(
    sessions: SessionsDep, grading: GradingDep, settings: SettingsDep, caller: CallerDep, body: GraderRun
) -> GraderRunReply:
    """Grade one sample, in a sandbox of the grading worker. 503 `grading_worker_away` when that does not answer.

    A `python` grader may be in any form that a reward may have. What the grader does wrong is in the reply.
    """
    return service.run(sessions, grading, settings, caller, body)


@router.post("/validate", summary="Validate a grader", responses=error_responses(404, 409, 413, 415))
def validate_grader(
    sessions: SessionsDep, grading: GradingDep, settings: SettingsDep, caller: CallerDep, body: GraderValidate
) -> GraderValidateReply:
    """Whether a job would take the grader. Source is loaded in a sandbox, and not called."""
    return service.validate(sessions, grading, settings, caller, body)
