"""`/v1/fine_tuning/jobs/{job_id}/rescore`: a job's rollouts, graded again by another version of a reward."""

from typing import Annotated, Literal, Self

from fastapi import Path
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from sqlalchemy.orm import Session

from app.auth import CallerDep
from app.dependencies import GradingDep, SessionsDep, SettingsDep
from app.errors import error_responses
from app.graders.tasks import GradingBusy
from app.jobs.checks import refusal
from app.jobs.endpoints import JobIdPath
from app.jobs.service import require_job
from app.routing import resource_router
from core.builtin_rewards.comparison import FormulaReward
from core.db import files, grading_tasks, rewards
from core.db.models import GradingTask, Job, RewardVersion
from core.errors import InvalidReward, NotFound, Problem
from core.grading_tasks import GradingTaskKind, GradingTaskStatus
from core.ids import FileId, GradingTaskId, JobId, RewardId, TenantId
from core.rescoring import MOST_ROLLOUTS, Rescore, RescoreReport
from core.reward_source import RewardEntry, RewardForm, analyse, bind
from core.spec import BuiltinReward, Exact, JobSpec, PinnedReward, RewardName, RewardTerm

router = resource_router("/v1/fine_tuning/jobs/{job_id}/rescore", tag="jobs")

MAX_STEP = 2**31 - 1
TaskIdPath = Annotated[GradingTaskId, Path(description="`gtask-...`")]
_ENTRY = TypeAdapter(RewardEntry)


class JobRescore(Exact):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"reward": "rew-0197f0a4c1e27b6a9d0f3c5e8a1b2c3f", "version": 2}]}
    )

    reward: RewardId = Field(description="Id of an uploaded reward.")
    version: int | None = Field(None, ge=1, lt=2**31, description="Unset: the newest one.")
    form: RewardForm | None = Field(
        None,
        description="How it is called; unset: as the job asked for the same reward, else as at the upload.",
    )
    term: RewardName | None = Field(None, description="The job's reward that it stands in for; unset: its only one.")
    from_step: int = Field(0, ge=0, le=MAX_STEP)
    to_step: int = Field(MAX_STEP, ge=0, le=MAX_STEP)
    limit: int = Field(1000, ge=1, le=MOST_ROLLOUTS, description="Rollouts; steps are taken whole, evenly spread.")


class RescoreError(BaseModel):
    model_config = ConfigDict(frozen=True)

    code: str
    message: str
    fix: str | None = None


class JobRescoreObject(BaseModel):
    """With the report once the status is `done`; it is kept for a day."""

    model_config = ConfigDict(frozen=True)

    object: Literal["fine_tuning.job.rescore"] = "fine_tuning.job.rescore"
    id: GradingTaskId
    job_id: JobId
    term: str
    version_id: str
    status: GradingTaskStatus
    created_at: int = Field(description="Unix seconds.")
    report: RescoreReport | None = None
    error: RescoreError | None = None

    @classmethod
    def of(cls, task: GradingTask) -> Self:
        asked = Rescore.model_validate(task.request)
        return cls(
            id=task.id,
            job_id=asked.job_id,
            term=asked.term,
            version_id=asked.version_id,
            status=task.status,
            created_at=int(task.created_at.timestamp()),
            report=None if task.answer is None else RescoreReport.model_validate(task.answer),
            error=None if task.error is None else RescoreError.model_validate(task.error),
        )


class RescoreNotFound(NotFound):
    code = "rescore_not_found"
    default_fix = "Ask for it again: POST /v1/fine_tuning/jobs/{id}/rescore."


@router.post(
    "",
    status_code=202,
    response_model=JobRescoreObject,
    summary="Rescore a job",
    responses={
        200: {"model": JobRescoreObject, "description": "It has ended within 3 s."},
        **error_responses(404, 409, 413, 415),
    },
)
def rescore_job(
    sessions: SessionsDep,
    grading: GradingDep,
    settings: SettingsDep,
    caller: CallerDep,
    job_id: JobIdPath,
    body: JobRescore,
) -> JSONResponse:
    """Grade the job's stored rollouts with another version of a reward, and compare. Nothing of the job changes."""
    with sessions.begin() as session:
        asked = _read(session, caller.tenant_id, require_job(session, caller.tenant_id, job_id), body)
        request = asked.model_dump(mode="json")
        task = grading_tasks.add(session, tenant_id=caller.tenant_id, kind=GradingTaskKind.RESCORE, request=request)
    grading.hint(task.id)
    try:
        ended = grading.wait(task.id, within_s=settings.report_wait_s)
    except GradingBusy:
        ended = None
    reply = JobRescoreObject.of(ended or task)
    return JSONResponse(reply.model_dump(mode="json"), 200 if ended else 202)


@router.get("/{task_id}", summary="Get a rescore", responses=error_responses(404))
def get_job_rescore(
    sessions: SessionsDep, caller: CallerDep, job_id: JobIdPath, task_id: TaskIdPath
) -> JobRescoreObject:
    """Whether it has ended, and its report."""
    with sessions() as session:
        require_job(session, caller.tenant_id, job_id)
        task = grading_tasks.get(session, task_id)
    if task is None or (task.tenant_id, task.kind) != (caller.tenant_id, GradingTaskKind.RESCORE):
        raise _no_rescore(task_id)
    found = JobRescoreObject.of(task)
    if found.job_id != job_id:
        raise _no_rescore(task_id)
    return found


def _no_rescore(task_id: GradingTaskId) -> RescoreNotFound:
    return RescoreNotFound(f"The job has no rescore {task_id[:64]!r}.", param="task_id")


def _read(session: Session, tenant_id: TenantId, job: Job, body: JobRescore) -> Rescore:
    """Raises InvalidRequest with everything that is wrong."""
    problems: list[Problem] = []
    spec = JobSpec.model_validate(job.spec)
    term = _term(spec, body.term, problems)
    version = _version(session, tenant_id, body, problems)
    form = body.form or _form_of(session, spec, term, body.reward)
    if version is not None:
        problems += _unfit(session, tenant_id, job, version, form)
    if body.from_step > body.to_step:
        fix = "Leave one of them out, or exchange them."
        problems.append(Problem("from_step", "is behind `to_step`", "invalid_value", fix))
    if problems or version is None:
        raise refusal(problems, subject="The request")
    return Rescore(
        job_id=job.id,
        version_id=version.id,
        form=form,
        term=term,
        from_step=body.from_step,
        to_step=body.to_step,
        limit=body.limit,
    )


def _term(spec: JobSpec, name: str | None, problems: list[Problem]) -> str:
    names = [term.name for term in spec.rewards if not _is_formula(term)]
    all_of_them = ", ".join(names)
    chosen = next(iter(names), spec.rewards[0].name) if name is None else name
    if name is None and len(names) > 1:
        fix = f"Say which one it stands in for: {all_of_them}."
        problems.append(Problem("term", "is required where a job has several rewards", "missing_field", fix))
    elif chosen in {term.name for term in spec.rewards if _is_formula(term)}:
        message = f"`{chosen}` is a formula over other rewards: no reward can stand in for it"
        problems.append(Problem("term", message, "term_is_a_formula", f"Replace one of these: {all_of_them}."))
    elif chosen not in names:
        message = f"the job has no reward `{chosen}`"
        problems.append(Problem("term", message, "unknown_term", f"The job has {all_of_them}."))
    return chosen


def _is_formula(term: RewardTerm) -> bool:
    """Such a term is computed from others; graders are never asked about it."""
    return isinstance(term, BuiltinReward) and isinstance(term.parameters, FormulaReward)


def _form_of(session: Session, spec: JobSpec, name: str, reward: RewardId) -> RewardForm | None:
    """Which the job asked for, where it did: a new version of the same reward is called as the old one was."""
    terms = (term for term in spec.rewards if isinstance(term, PinnedReward))
    pinned = next((term for term in terms if (term.name, term.reward_id) == (name, reward)), None)
    if pinned is None or pinned.version_id is None:
        return None
    version = rewards.version(session, pinned.version_id)
    is_as_found = version is not None and _ENTRY.validate_python(version.entry).form is pinned.form
    return None if is_as_found else pinned.form


def _version(session: Session, tenant_id: TenantId, body: JobRescore, problems: list[Problem]) -> RewardVersion | None:
    reward = rewards.get_owned(session, tenant_id, body.reward)
    version = None if reward is None else rewards.newest(session, reward.id, number=body.version)
    if reward is None:
        fix = "Upload it with POST /v1/rewards, or list yours with GET /v1/rewards."
        problems.append(Problem("reward", f"there is no reward {body.reward[:64]!r}", "reward_not_found", fix))
    elif version is None:
        message, fix = f"the reward has no version {body.version}", f"GET /v1/rewards/{reward.id} lists them."
        problems.append(Problem("version", message, "version_not_found", fix))
    return version


def _unfit(
    session: Session, tenant_id: TenantId, job: Job, version: RewardVersion, form: RewardForm | None
) -> list[Problem]:
    """Why the reward cannot grade what is kept."""
    entry = _entry(version, form)
    if isinstance(entry, Problem):
        return [entry]
    if "completion_ids" in entry.provided:
        message, fix = "reads `completion_ids`, which rollouts do not keep", "Read the text instead."
        return [Problem("reward", message, "completion_ids_not_kept", fix)]
    for what, file_id in _files_to_read(job).items():
        file = files.get_owned(session, tenant_id, file_id)
        if file is None:
            message = f"the job's {what} file was deleted, and with it the rows"
            return [Problem("reward", message, "rows_deleted", "Rescore jobs whose files are kept.")]
        if missing := bind(entry, file.columns, field="reward"):
            return missing
    return []


def _files_to_read(job: Job) -> dict[str, FileId]:
    """Held-out answers are graded again only where the job has one term."""
    found = {"training": job.training_file}
    if job.validation_file is not None and len(JobSpec.model_validate(job.spec).rewards) == 1:
        found["validation"] = job.validation_file
    return found


def _entry(version: RewardVersion, form: RewardForm | None) -> RewardEntry | Problem:
    entry = _ENTRY.validate_python(version.entry)
    if form is None or form is entry.form:
        return entry
    try:
        return analyse(version.source, entry_point=entry.name, form=form)
    except InvalidReward as error:
        first = error.problems[0]
        return Problem("form", first.message, first.code, first.fix)
