"""What a job was, as one archive: read in one transaction, put together on the way out, stored nowhere."""

from collections.abc import Iterator
from importlib.metadata import version

from pydantic import ValidationError

from app.artifacts.tar_stream import Member, VirtualTar
from app.bundle.ledger import Found, find
from app.bundle.members import of_bytes, of_object
from app.downloads import Content
from app.jobs.replies import unix
from app.jobs.resolve import spec_sha256
from core import keys
from core.bundle import (
    BUNDLE,
    EVALUATIONS,
    EVENTS,
    METRICS,
    RESULTS,
    Bundle,
    BundledAttempt,
    BundledData,
    BundledJob,
    BundledReward,
)
from core.db.models import File, Job, JobAttempt
from core.db.session import Sessions
from core.ids import JobId, TenantId
from core.results import ArtifactFacts, JobResults, ResumeAuditFacts
from core.spec import BuiltinReward, DataRef, RewardTerm
from core.storage.store import ObjectStore

TAR = "application/x-tar"


def bundle(sessions: Sessions, store: ObjectStore, tenant_id: TenantId, job_id: JobId, *, with_data: bool) -> Content:
    """Metrics and events pass through memory: a few KB a step."""
    with sessions() as session:
        found = find(session, tenant_id, job_id, with_data=with_data)
    members = list(_members(store, found))
    facts = _facts(store, found, members).model_dump_json(indent=1).encode()
    archive = VirtualTar([of_bytes(BUNDLE, facts), *members])
    return Content(f"{job_id}-bundle.tar", archive.size_bytes, archive.sha256, TAR, archive.read)


def _members(store: ObjectStore, found: Found) -> Iterator[Member]:
    """In the order of the archive: what is small and asked for first, the data last."""
    if (results := found.artifacts.get(RESULTS)) is not None:
        yield of_object(store, results.name, results.key, results.size_bytes, results.sha256)
    yield of_bytes(METRICS, found.metrics)
    yield of_bytes(EVENTS, found.events)
    for name, source in found.sources.items():
        yield of_bytes(_reward_member(name), source.encode())
    for name, evaluation in found.evaluations.items():
        yield of_bytes(f"{EVALUATIONS}{name}.json", evaluation)
    for name, file in found.files.items():
        yield of_object(store, _data_member(name, file), keys.data_file(file.id), file.size_bytes, file.sha256)


def _facts(store: ObjectStore, found: Found, members: list[Member]) -> Bundle:
    results = _results(store, found)
    return Bundle(
        podium=version("podium"),
        job=_job(found.job),
        spec=found.spec,
        spec_sha256=spec_sha256(found.spec),
        start_model=found.start_model,
        training=_data("training", found.spec.training, found),
        held_out=None if found.spec.held_out is None else _data("held_out", found.spec.held_out, found),
        rewards=tuple(_reward(term, found) for term in found.spec.rewards),
        environment=None if results is None else results.environment,
        adapter_sha256=None if results is None else results.model.adapter_sha256,
        attempts=tuple(map(_attempt, found.attempts)),
        members=tuple(
            ArtifactFacts(name=member.name, size_bytes=member.size_bytes, sha256=member.sha256) for member in members
        ),
    )


def _results(store: ObjectStore, found: Found) -> JobResults | None:
    """None also for a document of another version, which goes into the archive as it is."""
    artifact = found.artifacts.get(RESULTS)
    if artifact is None:
        return None
    try:
        return JobResults.model_validate_json(store.get_bytes(artifact.key))
    except ValidationError:
        return None


def _job(job: Job) -> BundledJob:
    return BundledJob(
        id=job.id,
        status=job.status,
        status_reason=job.status_reason,
        created_at=unix(job.created_at),
        started_at=None if job.started_at is None else unix(job.started_at),
        finished_at=None if job.finished_at is None else unix(job.finished_at),
        step=job.step,
        metadata=job.metadata_,
    )


def _data(name: str, data: DataRef, found: Found) -> BundledData:
    file = found.files.get(name)
    return BundledData(
        member=None if file is None else _data_member(name, file),
        filename=data.filename,
        format=data.format,
        sha256=data.sha256,
        rows=data.rows,
    )


def _reward(term: RewardTerm, found: Found) -> BundledReward:
    return BundledReward(
        name=term.name,
        form=term.form,
        source_sha256=term.source_sha256,
        member=_reward_member(term.name) if term.name in found.sources else None,
        credentials_sha256=term.credentials_sha256 if isinstance(term, BuiltinReward) else None,
    )


def _attempt(attempt: JobAttempt) -> BundledAttempt:
    audit = attempt.resume_audit
    return BundledAttempt(
        attempt=attempt.attempt,
        started_at=unix(attempt.started_at),
        ended_at=None if attempt.ended_at is None else unix(attempt.ended_at),
        resumed_from_step=attempt.resumed_from_step,
        last_step=attempt.last_step,
        ended=attempt.ended,
        resume_audit=None if audit is None else _audit(audit),
    )


def _audit(report: dict[str, object]) -> ResumeAuditFacts:
    return ResumeAuditFacts.model_validate({name: report[name] for name in ResumeAuditFacts.model_fields})


def _reward_member(name: str) -> str:
    return f"rewards/{name}.py"


def _data_member(name: str, file: File) -> str:
    return f"data/{name}.{file.format}"
