"""Where a job begins that names not a base model but what another job has made: one of that job's checkpoints."""

from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.models.names import FineTuned, fine_tuned_checkpoint, fine_tuned_model, parse_fine_tuned
from core.db import checkpoints, jobs
from core.db.models import Checkpoint, Job
from core.errors import Problem
from core.ids import TenantId
from core.spec import AdapterMethod, AdapterSpec, CheckpointRef, JobSpec, ModelRef
from core.status import JobStatus

NOT_FOUND = "checkpoint_not_found"
GONE = "checkpoint_gone"

_SHAPE = ("method", "r", "alpha", "target_modules")
"""What weights that were trained already have: a branch cannot have it otherwise."""


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """A checkpoint that is whole, and what the job that made it had been."""

    checkpoint: CheckpointRef
    base: ModelRef
    adapter: AdapterSpec


def find(session: Session, tenant_id: TenantId, reference: str) -> BranchPoint | Problem | None:
    """What `reference` names; the problem when that is not there, or no longer; None for base models."""
    made = parse_fine_tuned(reference)
    if made is None:
        return None
    job = jobs.get_owned(session, tenant_id, made.job_id)
    if job is None or not _is_name_of(reference, job, made):
        return _not_found(reference)
    found = checkpoints.newest(session, job.id, step=made.step)
    if found is None or (made.step is None and job.status is not JobStatus.SUCCEEDED):
        return _not_found(reference)
    if not checkpoints.is_whole(found):
        return gone(found)
    return _branch_point(found, job)


def inherited(asked: AdapterSpec, parent: AdapterSpec | None) -> AdapterSpec:
    """The parent's adapter with what the client wrote; that it may not contradict is asked in `differences`."""
    if parent is None:
        return asked
    return parent.model_copy(update={name: getattr(asked, name) for name in asked.model_fields_set})


def differences(asked: AdapterSpec, parent: AdapterSpec, *, field: str) -> list[Problem]:
    """Every setting of the adapter that the client wrote and that the trained weights do not have."""
    shape = ("method",) if asked.method is parent.method is AdapterMethod.FULL else _SHAPE
    return [
        Problem(
            f"{field}.{name}",
            f"differs from the checkpoint's, which has {_shown(getattr(parent, name))}",
            "adapter_differs",
            f"Set it to {_shown(getattr(parent, name))}, or leave it out: a branch inherits it.",
        )
        for name in shape
        if name in asked.model_fields_set and _comparable(getattr(asked, name)) != _comparable(getattr(parent, name))
    ]


def gone(checkpoint: Checkpoint) -> Problem:
    why = "its files turned out to be damaged" if checkpoint.corrupt_at else "retention has given it up"
    message = f"the checkpoint of step {checkpoint.step} cannot be used any more: {why}"
    fix = "Name one that GET /v1/fine_tuning/jobs/{id}/checkpoints lists; pin what you want to keep."
    return Problem("model", message, GONE, fix)


def _not_found(reference: str) -> Problem:
    fix = (
        "Copy `fine_tuned_model_checkpoint` from GET /v1/fine_tuning/jobs/{id}/checkpoints, "
        "or `fine_tuned_model` of a job that has succeeded."
    )
    return Problem("model", f"there is no checkpoint {reference[:200]!r}", NOT_FOUND, fix)


def _is_name_of(reference: str, job: Job, made: FineTuned) -> bool:
    if made.step is None:
        return reference == fine_tuned_model(job.model, job.suffix, job.id)
    return reference == fine_tuned_checkpoint(job.model, job.suffix, job.id, made.step)


def _branch_point(checkpoint: Checkpoint, job: Job) -> BranchPoint:
    spec = JobSpec.model_validate(job.spec)
    reference = CheckpointRef(
        job_id=job.id,
        checkpoint_id=checkpoint.id,
        step=checkpoint.step,
        prefix=checkpoint.prefix,
        manifest_sha256=checkpoint.manifest_sha256,
    )
    return BranchPoint(reference, spec.model, spec.adapter)


def _comparable(value: object) -> object:
    return frozenset(value) if isinstance(value, tuple) else value


def _shown(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else f"`{value}`"
