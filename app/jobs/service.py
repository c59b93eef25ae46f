"""The use cases of jobs: preview, submit, list, read. Each is one visible transaction; none trains anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog
from fastapi import Response
from sqlalchemy.orm import Session

from app.idempotency import Idempotency, located
from app.jobs import branch, facts, reports
from app.jobs.branch import BranchPoint
from app.jobs.checks import problems_with, refusal
from app.jobs.facts import Facts
from app.jobs.integrations import not_offered
from app.jobs.plan import plan_of
from app.jobs.replies import PACE_STEPS, JobObject
from app.jobs.resolve import Resolved, resolve, spec_sha256
from app.jobs.schemas import JobCreate
from app.models.resolve import resolve_model
from core.db import checkpoints, files, jobs, progress
from core.db.models import Job
from core.db.session import Sessions
from core.errors import (
    ModelNotAllowed,
    ModelNotFound,
    NotFound,
    PreconditionFailed,
    Problem,
    Unavailable,
)
from core.failpoints import failpoint
from core.ids import FileId, JobId, TenantId, new_job_id
from core.settings import Settings
from core.spec import JobSpec, ModelRef
from core.status import JobStatus

COLLECTION = "/v1/fine_tuning/jobs"

log = structlog.get_logger()


class JobNotFound(NotFound):
    code = "job_not_found"
    default_fix = "Check the id; GET /v1/fine_tuning/jobs lists your jobs."


@dataclass(frozen=True, slots=True)
class Submission:
    """A create request, whoever sent it."""

    tenant_id: TenantId
    body: JobCreate
    if_match: str | None = None
    """The ETag of a preview: run exactly that, or nothing."""


def preview(
    sessions: Sessions, settings: Settings, tenant_id: TenantId, body: JobCreate, *, reports_count: bool = True
) -> Resolved:
    """The job that would run; raises one error with everything that is wrong.

    `reports_count`: whether the reports on rewards that there are already may refuse it.
    """
    with sessions() as session:
        start = branch.find(session, tenant_id, body.model)
        plan = plan_of(body.method, parent=start.adapter if isinstance(start, BranchPoint) else None)
        known = facts.gather(session, tenant_id, body, plan, start)
        unloadable, doubtful = reports.unloadable(session, known) if reports_count else ([], [])
    problems = [*problems_with(body, plan, known, most_gpus=settings.gpus), *unloadable]
    problems += not_offered(settings, body.integrations)
    model = None if isinstance(start, Problem) else _find_model(settings, body, known, problems)
    if problems or model is None:
        raise refusal(problems)
    resolved = resolve(body, plan, known, model)
    return replace(resolved, warnings=(*resolved.warnings, *doubtful))


def submit(sessions: Sessions, settings: Settings, submission: Submission, once: Idempotency) -> Response:
    """Record a queued job. The row is the job: a worker hears of it later, by a hint that may be lost."""
    if (first := once.earlier_answer(sessions)) is not None:
        return located(first, COLLECTION)
    resolved = preview(sessions, settings, submission.tenant_id, submission.body)
    _require_previewed(submission, resolved)
    with sessions.begin() as session:
        if (first := once.first_answer(session)) is not None:
            return located(first, COLLECTION)
        require_files(session, submission.tenant_id, submission.body)
        require_checkpoint(session, resolved)
        job = _add(session, submission, resolved)
        answer = once.answer(session, 201, JobObject.of(job, ()))
        failpoint("submit.row_written")
    failpoint("submit.committed")
    log.info("job_created", job_id=job.id, model=job.model, steps=resolved.spec.max_steps)
    return located(answer, COLLECTION)


def show(session: Session, job: Job) -> JobObject:
    return JobObject.of(job, progress.newest_steps(session, job.id, limit=PACE_STEPS))


def page(
    sessions: Sessions,
    tenant_id: TenantId,
    *,
    after: JobId | None,
    limit: int,
    status: JobStatus | None,
    metadata: Mapping[str, str],
) -> Sequence[JobObject]:
    with sessions() as session:
        found = jobs.page(session, tenant_id, after=after, limit=limit, status=status, metadata=metadata)
        return [show(session, job) for job in found]


def get(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> JobObject:
    with sessions() as session:
        return show(session, require_job(session, tenant_id, job_id))


def require_job(session: Session, tenant_id: TenantId, job_id: JobId) -> Job:
    """The caller's job, or the one 404 for jobs that are missing and jobs of others."""
    job = jobs.get_owned(session, tenant_id, job_id)
    if job is None:
        raise JobNotFound(f"There is no job {job_id[:64]!r}.", param="job_id")
    return job


def require_files(session: Session, tenant_id: TenantId, body: JobCreate) -> None:
    """Asked again, and locked, in the transaction that creates the job: a file may have been deleted since."""
    named: list[tuple[str, FileId | None]] = [
        ("training_file", body.training_file),
        ("validation_file", body.validation_file),
    ]
    gone = [
        Problem(field, "was deleted a moment ago", "file_not_found", "Upload the file again.")
        for field, file_id in named
        if file_id is not None and files.get_owned_to_use(session, tenant_id, file_id) is None
    ]
    if gone:
        raise refusal(gone)


def require_checkpoint(session: Session, resolved: Resolved) -> None:
    """Asked again, and locked, in the transaction that creates the job: from then on retention sees the branch."""
    start = resolved.spec.start_from
    if start is None:
        return
    if checkpoints.get_to_use(session, start.checkpoint_id) is None:
        lost = checkpoints.newest(session, start.job_id, step=start.step)
        assert lost is not None, "rows of checkpoints are never deleted"
        raise refusal([branch.gone(lost)])


def etag_of(spec: JobSpec) -> str:
    return f'"{spec_sha256(spec)}"'


def _find_model(settings: Settings, body: JobCreate, known: Facts, problems: list[Problem]) -> ModelRef | None:
    """The pinned model, or None and one more problem. A hub that is away matters only if nothing else is wrong."""
    start = known.start
    try:
        return resolve_model(settings, body.model if start is None else _base(start))
    except (ModelNotFound, ModelNotAllowed) as error:
        needed = None if start is None else f"Ask the operator for {_base(start)!r}: the checkpoint was made from it."
        fix = needed or error.fix
        problems.insert(0, Problem("model", error.message, error.code, fix))
    except Unavailable:
        if not problems:
            raise
    return None


def _base(start: BranchPoint) -> str:
    """The base model of the job that made the checkpoint, at the revision which that job had."""
    return start.base.name if start.base.revision is None else f"{start.base.name}@{start.base.revision}"


def _require_previewed(submission: Submission, resolved: Resolved) -> None:
    if submission.if_match is None:
        return
    if etag_of(resolved.spec) not in (tag.strip() for tag in submission.if_match.split(",")):
        message = "What would run now is not what was previewed: the request, a file, a reward or the model differs."
        raise PreconditionFailed(message, param="If-Match")


def _add(session: Session, submission: Submission, resolved: Resolved) -> Job:
    body = submission.body
    return jobs.add(
        session,
        new_job_id(),
        tenant_id=submission.tenant_id,
        spec=resolved.spec,
        model=resolved.spec.model.name,
        method=body.method.model_dump(mode="json", exclude_unset=True),
        metadata=body.metadata or {},
        inline_sources=resolved.inline_sources,
        integrations=body.integrations or (),
    )
