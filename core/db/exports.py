"""Who sends the metrics of a job to a target: a row for each of both, taken by an exporter under a lease.

As with jobs, `attempt` is the fencing token and all times are the database's clock. How far a target has come is not
here: it is asked itself (docs/exports.md). Events are for the job's owner: one when it begins, one when all is there,
and a warning for each new kind of failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session

from core.db import events, progress
from core.db.models import Artifact, Export, Job, now
from core.errors import ServiceError
from core.ids import JobId
from core.integrations import Integration
from core.settings import ExportTarget
from core.status import TERMINAL, JobStatus

LONGEST_PAUSE_S = 900.0
_NO_ATTEMPT = 0
"""Of the job: what an exporter writes belongs to none, and stays out of what attempts publish."""


class ClaimLost(Exception):
    """Another exporter may be at it now: stop, and write nothing more."""


@dataclass(frozen=True, slots=True)
class Claim:
    job_id: JobId
    target: ExportTarget
    attempt: int


def claim(session: Session, *, ttl_s: float) -> Claim | None:
    """Take the export that has been due for longest, of a job that runs or is over; None when there is none."""
    export = session.scalar(
        select(Export)
        .join(Job, Job.id == Export.job_id)
        .where(
            Export.finished_at.is_(None),
            Export.due_at <= now(),
            or_(Export.lease_expires_at.is_(None), Export.lease_expires_at < now()),
            Job.status.in_([JobStatus.RUNNING, *TERMINAL]),
        )
        .order_by(Export.due_at)
        .limit(1)
        .with_for_update(of=Export, skip_locked=True)
    )
    if export is None:
        return None
    claim = Claim(export.job_id, export.target, export.attempt + 1)
    values = {"attempt": claim.attempt, "lease_expires_at": _in(ttl_s)}
    session.execute(update(Export).where(*_key(claim)).values(values))
    return claim


def renew(session: Session, claim: Claim, *, ttl_s: float) -> None:
    """Prolong the lease. Raises `ClaimLost`."""
    _write(session, claim, lease_expires_at=_in(ttl_s))


def works(session: Session, claim: Claim, *, where: str) -> None:
    """The target has taken something; the first time, the owner is told `where` it is. Raises `ClaimLost`."""
    export = _held(session, claim)
    if export.started_at is None:
        message = f"The metrics go to {where}."
        events.add(session, claim.job_id, code="export_started", message=message, data={"target": claim.target})
    _write(session, claim, started_at=func.coalesce(Export.started_at, now()), failing_since=None, failures=0)


def finish(session: Session, claim: Claim, *, where: str, last_step: int) -> None:
    """Everything is there. Raises `ClaimLost`."""
    _write(session, claim, finished_at=now(), lease_expires_at=None)
    message = f"All metrics up to step {last_step} are in {where}."
    data = {"target": claim.target, "last_step": last_step}
    events.add(session, claim.job_id, code="exported", message=message, data=data)


def end_without(session: Session, claim: Claim) -> None:
    """There is nothing to send, and never will be. Raises `ClaimLost`."""
    _write(session, claim, finished_at=now(), lease_expires_at=None)


def leave(session: Session, claim: Claim) -> None:
    """Nothing happens just now: due again at once, which means when the job runs. Raises `ClaimLost`."""
    _write(session, claim, due_at=now(), lease_expires_at=None)


def fail(session: Session, claim: Claim, error: ServiceError, *, retry_s: float, patience_s: float) -> None:
    """Try again after a pause that doubles each time; give up a job that is over when patience ends.

    Raises `ClaimLost`.
    """
    export = _held(session, claim)
    job = session.get_one(Job, claim.job_id)
    pause_s = min(LONGEST_PAUSE_S, retry_s * 2 ** min(export.failures, 16))
    values: dict[str, Any] = {
        "failures": export.failures + 1,
        "failing_since": func.coalesce(Export.failing_since, now()),
        "error_code": error.code,
        "due_at": _in(pause_s),
        "lease_expires_at": None,
    }
    if export.error_code != error.code:
        _warn(session, claim, error, code=error.code)
    if job.status.is_terminal and _is_out_of_patience(session, claim, patience_s):
        values["finished_at"] = now()
        _warn(session, claim, error, code="export_given_up")
    _write(session, claim, **values)


def failing(session: Session, job_id: JobId) -> Sequence[Export]:
    """Those whose last try failed, and those that were given up."""
    query = select(Export).where(Export.job_id == job_id, Export.failing_since.is_not(None))
    return session.scalars(query.order_by(Export.target)).all()


def put_artifact(
    session: Session, claim: Claim, *, name: str, key: str, size_bytes: int, sha256: str, content_type: str
) -> str | None:
    """Show an uploaded object under the name; the key of the one that it replaces, if any. Raises `ClaimLost`."""
    _held(session, claim)
    old = session.get(Artifact, (claim.job_id, name), populate_existing=True)
    progress.show_artifact(
        session,
        claim.job_id,
        attempt=_NO_ATTEMPT,
        name=name,
        key=key,
        size_bytes=size_bytes,
        sha256=sha256,
        content_type=content_type,
    )
    return None if old is None else old.key


def integration(session: Session, claim: Claim) -> Integration:
    """How the job's owner wants it to be called there."""
    found = (Integration.model_validate(item) for item in session.get_one(Job, claim.job_id).integrations)
    return next(item for item in found if item.type is claim.target)


def held_by(attempt: int) -> tuple[ColumnElement[bool], ...]:
    """Until it is released: one whose lease ran out may go on, as long as no other exporter has begun."""
    return Export.attempt == attempt, Export.lease_expires_at.is_not(None), Export.finished_at.is_(None)


def _warn(session: Session, claim: Claim, error: ServiceError, *, code: str) -> None:
    given_up = code == "export_given_up"
    what = "It is given up." if given_up else "It is tried again; the job itself goes on."
    data = {"target": claim.target, "fix": error.fix}
    message = f"The export to {claim.target} failed: {error.message} {what}"
    events.add(session, claim.job_id, code=code, message=message, level="warn", data=data)


def _is_out_of_patience(session: Session, claim: Claim, patience_s: float) -> bool:
    """Counted from the first of the failures in a row, and from the job's end."""
    began = func.greatest(Export.failing_since, Job.finished_at)
    query = select(began < now() - timedelta(seconds=patience_s)).join(Job, Job.id == Export.job_id)
    return session.scalar(query.where(*_key(claim), Export.failing_since.is_not(None))) is True


def _held(session: Session, claim: Claim) -> Export:
    """The row, locked, if the claim still stands."""
    row = select(Export).where(*_is_held(claim)).with_for_update()
    export = session.scalar(row.execution_options(populate_existing=True))
    if export is None:
        raise ClaimLost
    return export


def _write(session: Session, claim: Claim, **values: Any) -> None:
    if session.scalar(update(Export).where(*_is_held(claim)).values(values).returning(Export.attempt)) is None:
        raise ClaimLost


def _key(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return Export.job_id == claim.job_id, Export.target == claim.target


def _is_held(claim: Claim) -> tuple[ColumnElement[bool], ...]:
    return *_key(claim), *held_by(claim.attempt)


def _in(seconds: float) -> Any:
    return now() + timedelta(seconds=seconds)
