"""Trying graders. The API checks what can be read, and has the grading worker run the rest."""

from typing import Any

from app.auth import Caller
from app.graders.replies import reply_of
from app.graders.schemas import (
    GraderRun,
    GraderRunReply,
    GraderValidate,
    GraderValidateReply,
    PodiumGrader,
    TriedGrader,
)
from app.graders.tasks import GradingTasks
from app.jobs.checks import refusal
from app.jobs.facts import Facts, known_graders, known_terms
from app.jobs.resolve import pin
from app.jobs.reward_checks import problems_among
from core.db.session import Sessions
from core.errors import Problem
from core.grading_tasks import GraderRan, GradingTaskKind, RunGrader
from core.ids import TenantId
from core.settings import Settings
from core.spec import PinnedReward, RewardTerm

_WHAT = "The grader"


def run(
    sessions: Sessions, grading: GradingTasks, settings: Settings, caller: Caller, body: GraderRun
) -> GraderRunReply:
    terms, sources = _read(sessions, caller.tenant_id, body.grader, any_form=True)
    asked = RunGrader(terms=terms, sources=sources, item=body.item, sample=body.model_sample)
    ran = _ask(grading, settings, caller.tenant_id, asked)
    return reply_of(body.grader, terms, body.model_sample, ran)


def validate(
    sessions: Sessions, grading: GradingTasks, settings: Settings, caller: Caller, body: GraderValidate
) -> GraderValidateReply:
    """As a job would take it; source is loaded, not called."""
    terms, sources = _read(sessions, caller.tenant_id, body.grader, any_form=False)
    if any(isinstance(term, PinnedReward) for term in terms):
        asked = RunGrader(terms=terms, sources=sources, item={}, sample=None)
        ran = _ask(grading, settings, caller.tenant_id, asked)
        if problems := [_load_problem(name, grade.message) for name, grade in ran.grades.items()]:
            raise refusal(problems, subject=_WHAT)
    return GraderValidateReply(grader=body.grader.model_dump(mode="json", by_alias=True, exclude_none=True))


def _read(
    sessions: Sessions, tenant_id: TenantId, grader: TriedGrader, *, any_form: bool
) -> tuple[tuple[RewardTerm, ...], dict[str, str]]:
    """The terms, and what goes with them; raises InvalidRequest with every problem."""
    problems: list[Problem] = []
    if isinstance(grader, PodiumGrader):
        with sessions() as session:
            known = tuple(known_terms(session, tenant_id, grader.rewards, "grader.rewards", problems))
    else:
        known = tuple(known_graders(grader, "grader", problems, any_form=any_form))
    problems += problems_among(Facts(None, None, known, problems=problems))
    if problems:
        raise refusal(problems, subject=_WHAT)
    return pin(known)


def _ask(grading: GradingTasks, settings: Settings, tenant_id: TenantId, asked: RunGrader) -> GraderRan:
    asked = asked.model_copy(update={"within_s": settings.grader_wait_s})
    request: dict[str, Any] = asked.model_dump(mode="json")
    answer = grading.ask(tenant_id, GradingTaskKind.RUN_GRADER, request, within_s=settings.grader_wait_s)
    return GraderRan.model_validate(answer)


def _load_problem(name: str, message: str | None) -> Problem:
    fix = "Load the source with Python by itself, with the packages of the worker, and correct what it raises."
    return Problem("grader", f"`{name}` cannot be loaded: {message}", "load_error", fix)
