"""What a caller may ask of a job that is there: cancel, pause, resume. The wish is recorded; the status is a fact."""

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
    with sessions.begin() as session:
        job = require_job(session, tenant_id, job_id)
        if not jobs.request_cancel(session, job):
            message = f"The job has already {_ENDED[job.status]}, so it cannot be cancelled."
            raise JobNotCancellable(message, param="job_id", fix="Nothing needs to be done: it holds no worker.")
        session.refresh(job)
        return show(session, job)


def pause(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> JobObject:
    """Record the wish. A queued job is paused at once; a running one when its trainer has saved and stopped."""
    with sessions.begin() as session:
        job = require_job(session, tenant_id, job_id)
        if not jobs.request_pause(session, job):
            message = f"The job has already {_ENDED[job.status]}, so it cannot be paused."
            raise JobNotPausable(message, param="job_id", fix="Nothing needs to be done: it holds no worker.")
        session.refresh(job)
        return show(session, job)


def resume(sessions: Sessions, tenant_id: TenantId, job_id: JobId) -> JobObject:
    """Queue a paused job again, due at once. A pause that has not taken effect yet is taken back."""
    with sessions.begin() as session:
        job = require_job(session, tenant_id, job_id)
        if not jobs.resume(session, job):
            raise _not_paused(job)
        session.refresh(job)
        return show(session, job)


def _not_paused(job: Job) -> JobNotPaused:
    if job.status.is_terminal:
        message = f"The job has already {_ENDED[job.status]}, so it cannot be resumed."
        fix = "Create a job whose `model` is one of its checkpoints (GET .../checkpoints) to go on from there."
    else:
        message = f"The job is {job.status} and nobody has asked to pause it."
        fix = "Nothing needs to be done: it goes on by itself."
    return JobNotPaused(message, param="job_id", fix=fix)
