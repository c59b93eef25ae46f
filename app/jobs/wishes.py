"""What a caller may ask of a job that is there: cancel, pause, resume. The wish is recorded; the status is a fact."""

from collections.abc import Callable

from sqlalchemy.orm import Session

from app.jobs.replies import JobObject
from app.jobs.service import require_job, show
from core.db import jobs
from core.db.models import Job
from core.db.session import Sessions
from core.errors import Conflict, JobNotCancellable
from core.ids import JobId, TenantId
from core.status import JobStatus

_ENDED = {JobStatus.SUCCEEDED: "succeeded", JobStatus.FAILED: "failed", JobStatus.CANCELLED: "been cancelled"}


class JobNotPausable(Conflict):
    """A job that has ended."""

    code = "job_not_pausable"


class JobNotPaused(Conflict):
    """A job that nobody has asked to pause, or that has ended."""

    code = "job_not_paused"


def cancel(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> JobObject:
    """Record the wish. A job that no worker holds is cancelled at once; a running one when its trainer has stopped."""
    return _wish(sessions, tenant_id, job_id, jobs.request_cancel, _not_cancellable)


def pause(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> JobObject:
    """Record the wish. A queued job is paused at once; a running one when its trainer has saved and stopped."""
    return _wish(sessions, tenant_id, job_id, jobs.request_pause, _not_pausable)


def resume(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> JobObject:
    """Queue a paused job again, due at once. A pause that has not taken effect yet is taken back."""
    return _wish(sessions, tenant_id, job_id, jobs.resume, _not_paused)


def _wish(
    sessions: Sessions,
    tenant_id: TenantId,
    job_id: JobId,
    record: Callable[[Session, Job], bool],
    refusal: Callable[[Job], Conflict],
) -> JobObject:
    with sessions.begin() as session:
        job = require_job(session, tenant_id, job_id)
        if not record(session, job):
            raise refusal(job)
        session.refresh(job)
        return show(session, job)


def _not_cancellable(job: Job) -> JobNotCancellable:
    message = f"The job has already {_ENDED[job.status]}, so it cannot be cancelled."
    return JobNotCancellable(message, param="job_id", fix="Nothing needs to be done: it holds no worker.")


def _not_pausable(job: Job) -> JobNotPausable:
    message = f"The job has already {_ENDED[job.status]}, so it cannot be paused."
    return JobNotPausable(message, param="job_id", fix="Nothing needs to be done: it holds no worker.")


def _not_paused(job: Job) -> JobNotPaused:
    if job.status.is_terminal:
        message = f"The job has already {_ENDED[job.status]}, so it cannot be resumed."
        fix = "Create a job whose `model` is one of its checkpoints (GET .../checkpoints) to go on from there."
    else:
        message = f"The job is {job.status} and nobody has asked to pause it."
        fix = "Nothing needs to be done: it goes on by itself."
    return JobNotPaused(message, param="job_id", fix=fix)
