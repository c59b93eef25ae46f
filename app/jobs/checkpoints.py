"""The use cases of checkpoints: list, and keep one for good or leave it to retention again."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from app.jobs.progress_replies import CheckpointObject
from app.jobs.service import require_job
from core.db import checkpoints
from core.db.models import Checkpoint
from core.db.session import Sessions
from core.errors import NotFound
from core.ids import CheckpointId, JobId, TenantId


class CheckpointNotFound(NotFound):
    code = "checkpoint_not_found"
    default_fix = "GET .../checkpoints lists those that can be used."


def page(
    sessions: Sessions, tenant_id: TenantId, job_id: JobId, *, after: CheckpointId | None, limit: int
) -> Sequence[CheckpointObject]:
    """Newest first. What retention has given up, or what is damaged, is not among them."""
    with sessions() as session:
        job = require_job(session, tenant_id, job_id)
        if after is not None and not checkpoints.exists(session, job_id, after):
            fix = "Leave `after` out to begin with the newest checkpoint."
            raise CheckpointNotFound(f"The job has no checkpoint {after!r}.", param="after", fix=fix)
        found = checkpoints.page(session, job_id, after=after, limit=limit)
        return [CheckpointObject.of(checkpoint, job) for checkpoint in found]


def pin(sessions: Sessions, tenant_id: TenantId, job_id: JobId, step: int) -> CheckpointObject:
    """Retention never gives it up."""
    with sessions.begin() as session:
        job = require_job(session, tenant_id, job_id)
        checkpoint = _lock(session, job_id, step)
        checkpoints.pin(session, checkpoint.id)
        session.refresh(checkpoint)
        return CheckpointObject.of(checkpoint, job)


def unpin(sessions: Sessions, tenant_id: TenantId, job_id: JobId, step: int) -> CheckpointObject:
    """Leave it to retention again, which spares it as long as a branch may have to read it."""
    with sessions.begin() as session:
        job = require_job(session, tenant_id, job_id)
        checkpoint = _lock(session, job_id, step)
        checkpoints.pin(session, checkpoint.id, pinned=False)
        session.refresh(checkpoint)
        return CheckpointObject.of(checkpoint, job)


def require_checkpoint(session: Session, job_id: JobId, step: int) -> Checkpoint:
    """The newest whole checkpoint of the step."""
    found = checkpoints.at_step(session, job_id, step)
    if found is None:
        raise CheckpointNotFound(_absence(session, job_id, step), param="step")
    return found


def _lock(session: Session, job_id: JobId, step: int) -> Checkpoint:
    """As `require_checkpoint`, and nobody gives it up or branches from it until the transaction ends."""
    found = checkpoints.get_to_use(session, require_checkpoint(session, job_id, step).id)
    if found is None:  # given up since it was read
        raise CheckpointNotFound(_absence(session, job_id, step), param="step")
    return found


def _absence(session: Session, job_id: JobId, step: int) -> str:
    was = checkpoints.newest(session, job_id, step=step)
    if was is None:
        return f"The job has no durable checkpoint of step {step}."
    if was.corrupt_at is not None:
        return f"The checkpoint of step {step} turned out to be damaged."
    return f"Retention has given up the checkpoint of step {step}."
