"""Publishes a finished run: artifacts first, `results.json` last, then the row that says `succeeded`."""

import mimetypes
from datetime import datetime

import structlog
from sqlalchemy import select

from core import keys
from core.db import files, jobs, leases, progress
from core.db.leases import Lease
from core.db.models import File, now
from core.db.session import Sessions
from core.ids import FileId, new_file_id
from core.results import Evaluation
from core.settings import Settings
from core.status import JobStatus, Stage
from core.storage.store import ObjectStore, digest_of
from worker import results
from worker.run_directory import RunDirectory, Summary

log = structlog.get_logger()

RESULTS = "results.json"
JSON = "application/json"


def publish(
    sessions: Sessions, store: ObjectStore, lease: Lease, run: RunDirectory, summary: Summary, settings: Settings
) -> None:
    """End the job as succeeded. May be repeated after a failure; raises `LeaseLost` when fenced."""
    _publish_folder(sessions, store, lease, run)
    _publish_evaluations(sessions, store, lease)
    facts = _ledger_facts(sessions, lease)
    document = results.build(lease.spec, summary, facts, usd_per_hour=settings.gpu_price_usd_per_hour)
    data = document.model_dump_json(indent=1).encode()
    key = keys.artifact(lease.job_id, lease.attempt, RESULTS)
    digest = store.put_bytes(key, data, content_type=JSON)
    with sessions.begin() as session:
        leases.hold(session, lease)
        progress.add_artifact(
            session, lease, name=RESULTS, key=key, size_bytes=len(data), sha256=digest, content_type=JSON
        )
        file = _results_file(lease, key, size_bytes=len(data), sha256=digest)
        files.add(session, file)
        leases.finish(
            session,
            lease,
            JobStatus.SUCCEEDED,
            message=document.verdict.sentence,
            results_file=file.id,
            trained_tokens=summary.trained_tokens,
        )
    log.info("published", outcome=document.verdict.outcome, p_value=document.verdict.p_value)


def _publish_folder(sessions: Sessions, store: ObjectStore, lease: Lease, run: RunDirectory) -> None:
    for path in sorted(path for path in run.adapter.rglob("*") if path.is_file()):
        name = f"adapter/{path.relative_to(run.adapter).as_posix()}"
        key, digest = keys.artifact(lease.job_id, lease.attempt, name), digest_of(path)
        content_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
        store.put_file(key, path, sha256=digest, content_type=content_type)
        _record(sessions, lease, name, key, path.stat().st_size, digest, content_type)


def _publish_evaluations(sessions: Sessions, store: ObjectStore, lease: Lease) -> None:
    """Every task's answers, of every attempt: the evidence behind the verdict."""
    for name, evaluation in _evaluations(sessions, lease).items():
        data = evaluation.model_dump_json().encode()
        artifact = f"evaluations/{name}.json"
        key = keys.artifact(lease.job_id, lease.attempt, artifact)
        digest = store.put_bytes(key, data, content_type=JSON)
        _record(sessions, lease, artifact, key, len(data), digest, JSON)


def _record(
    sessions: Sessions, lease: Lease, name: str, key: str, size_bytes: int, digest: str, content_type: str
) -> None:
    with sessions.begin() as session:
        leases.hold(session, lease)
        progress.add_artifact(
            session, lease, name=name, key=key, size_bytes=size_bytes, sha256=digest, content_type=content_type
        )


def _evaluations(sessions: Sessions, lease: Lease) -> dict[str, Evaluation]:
    with sessions.begin() as session:
        records = progress.evaluations(session, lease.job_id)
    return {record.name: Evaluation.model_validate(record.evaluation) for record in records}


def _ledger_facts(sessions: Sessions, lease: Lease) -> results.LedgerFacts:
    evaluations = _evaluations(sessions, lease)
    with sessions.begin() as session:
        leases.hold(session, lease)
        progress.set_stage(session, lease, Stage.EXPORTING)
        job = jobs.get(session, lease.job_id)
        clock = session.scalar(select(now()))
        assert job is not None
        assert isinstance(clock, datetime)
        return results.LedgerFacts(
            job=job,
            attempts=progress.attempts(session, lease.job_id),
            evaluations=evaluations,
            artifacts=[found for found in progress.artifacts(session, lease.job_id) if found.name != RESULTS],
            now=clock,
            held_seconds=progress.held_seconds(session, lease.job_id),
            redone_steps=progress.redone_steps(session, lease.job_id),
        )


def _results_file(lease: Lease, key: str, *, size_bytes: int, sha256: str) -> File:
    file_id: FileId = new_file_id()
    return File(
        id=file_id,
        tenant_id=lease.tenant_id,
        filename=RESULTS,
        purpose="fine-tune-results",
        size_bytes=size_bytes,
        sha256=sha256,
        key=key,
        job_id=lease.job_id,
    )
