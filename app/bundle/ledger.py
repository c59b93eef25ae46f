"""What the ledger knows of a job that belongs into its bundle."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy.orm import Session

from app.evaluations.service import SpecUnreadable
from app.jobs.progress_replies import EventObject
from app.jobs.service import require_job
from app.models.names import fine_tuned_checkpoint
from core.db import events, files, jobs, progress, rewards
from core.db.models import Artifact, File, Job, JobAttempt
from core.ids import JobId, TenantId
from core.results import Evaluation
from core.spec import JobSpec, PinnedReward

PAGE = 1000


@dataclass(frozen=True, slots=True)
class Found:
    job: Job
    spec: JobSpec
    start_model: str | None
    attempts: Sequence[JobAttempt]
    metrics: bytes
    events: bytes
    """Both as JSON Lines."""
    sources: Mapping[str, str]
    """Of rewards that have one, by name. Never the credentials, which the ledger keeps in the same place."""
    evaluations: Mapping[str, bytes]
    """By name, in the order in which they were taken; `core.results.Evaluation` as JSON."""
    artifacts: Mapping[str, Artifact]
    files: Mapping[str, File]
    """`training` and `held_out`, where they are asked for and still there."""


def find(session: Session, tenant_id: TenantId, job_id: JobId, *, with_data: bool) -> Found:
    """Raises `JobNotFound`, `SpecUnreadable`."""
    job = require_job(session, tenant_id, job_id)
    try:
        spec = JobSpec.model_validate(job.spec)
    except ValidationError as error:
        raise SpecUnreadable(f"This version cannot read the spec of {job.id}.", param="job_id") from error
    return Found(
        job=job,
        spec=spec,
        start_model=_start_model(session, tenant_id, spec),
        attempts=progress.attempts(session, job_id),
        metrics=b"".join(_steps(session, job)),
        events=b"".join(_events(session, job)),
        sources=dict(_sources(session, job, spec)),
        evaluations=dict(_evaluations(session, job)),
        artifacts={artifact.name: artifact for artifact in progress.artifacts(session, job_id)},
        files=dict(_files(session, tenant_id, spec)) if with_data else {},
    )


def _start_model(session: Session, tenant_id: TenantId, spec: JobSpec) -> str | None:
    start = spec.start_from
    if start is None:
        return None
    parent = jobs.get_owned(session, tenant_id, start.job_id)
    assert parent is not None, "jobs are never deleted, and branches belong to their parent's owner"
    return fine_tuned_checkpoint(parent.model, parent.suffix, parent.id, start.step)


def _steps(session: Session, job: Job) -> Iterator[bytes]:
    """Up to where the job is: what an earlier attempt did beyond that is superseded."""
    first = 0
    while page := progress.steps(session, job.id, from_step=first, to_step=job.step, limit=PAGE):
        for row in page:
            yield _line({"step": row.step, "attempt": row.attempt, "metrics": row.metrics})
        first = page[-1].step + 1


def _events(session: Session, job: Job) -> Iterator[bytes]:
    after = 0
    while page := events.oldest_first(session, job.id, after_seq=after, limit=PAGE):
        for event in page:
            yield _line(EventObject.of(event).model_dump(mode="json"))
        after = page[-1].seq


def _sources(session: Session, job: Job, spec: JobSpec) -> Iterator[tuple[str, str]]:
    for term in spec.rewards:
        if not isinstance(term, PinnedReward):
            continue
        if term.version_id is None:
            source = jobs.inline_source(session, job.id, term.name)
        else:
            version = rewards.version(session, term.version_id)
            source = None if version is None else version.source
        if source is not None:
            yield term.name, source


def _evaluations(session: Session, job: Job) -> Iterator[tuple[str, bytes]]:
    for record in progress.evaluations(session, job.id):
        yield record.name, Evaluation.model_validate(record.evaluation).model_dump_json().encode()


def _files(session: Session, tenant_id: TenantId, spec: JobSpec) -> Iterator[tuple[str, File]]:
    for name, data in (("training", spec.training), ("held_out", spec.held_out)):
        file = None if data is None else files.get_owned(session, tenant_id, data.file_id)
        if file is not None:
            yield name, file


def _line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, sort_keys=True, separators=(",", ":")) + "\n").encode()
