"""Publishes a finished run: artifacts into the store, `results.json` last, then one transaction that shows them all."""

import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from core import keys
from core.db import checkpoints, files, learning, leases, progress, signal_probes
from core.db.leases import Lease
from core.db.models import File, Job
from core.db.session import Sessions
from core.failpoints import failpoint
from core.ids import new_file_id
from core.learning.findings import learning_findings
from core.results import ArtifactFacts, Evaluation
from core.settings import Settings
from core.signal_report import SignalReport
from core.status import JobStatus, Stage
from core.storage.store import OCTETS, ObjectStore, digest_of
from worker import results
from worker.run_directory import RunDirectory, RunUnreadable, Summary

log = structlog.get_logger()

RESULTS = "results.json"
JSON = "application/json"
NEEDED_EVALUATIONS = {"baseline", "final"}


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    name: str
    key: str
    size_bytes: int
    sha256: str
    content_type: str


def publish(
    sessions: Sessions, store: ObjectStore, lease: Lease, run: RunDirectory, summary: Summary, settings: Settings
) -> None:
    """End the job as succeeded. May be repeated after a failure.

    Raises `LeaseLost` when fenced, errors of the store, and `RunUnreadable` for a run without the evaluations that
    a verdict needs.
    """
    evaluations = _begin(sessions, lease)
    artifacts = [*_put_adapter(store, lease, run.adapter), *_put_evaluations(store, lease, evaluations)]
    failpoint("publish.artifacts_put")
    facts = _gather(sessions, lease, evaluations, artifacts)
    document = results.build(lease.spec, summary, facts, usd_per_hour=settings.gpu_price_usd_per_hour)
    results_file = _put_json(store, lease, RESULTS, document.model_dump_json(indent=1))
    failpoint("publish.results_put")
    _show(
        sessions,
        lease,
        [*artifacts, results_file],
        best_step=document.best.step,
        sentence=document.verdict.sentence,
        trained_tokens=summary.trained_tokens,
    )
    failpoint("publish.committed")
    log.info("published", outcome=document.verdict.outcome, p_value=document.verdict.p_value)


def publish_report(sessions: Sessions, lease: Lease, report: SignalReport) -> None:
    """End a signal probe as succeeded. May be repeated. Raises `LeaseLost` when fenced."""
    with sessions.begin() as session:
        leases.hold(session, lease)
        signal_probes.set_report(session, lease, report)
        leases.finish(session, lease, JobStatus.SUCCEEDED, message=report.sentence)
    log.info("probe_published", silent_share=report.silent_share)


def _begin(sessions: Sessions, lease: Lease) -> dict[str, Evaluation]:
    """Every evaluation of every attempt, by name: the evidence behind the verdict."""
    with sessions.begin() as session:
        leases.hold(session, lease)
        progress.set_stage(session, lease, Stage.EXPORTING)
        evaluations = progress.evaluations_by_name(session, lease.job_id)
    if missing := NEEDED_EVALUATIONS - evaluations.keys():
        raise RunUnreadable(f"The trainer finished without the evaluations {', '.join(sorted(missing))}.")
    return evaluations


def _put_adapter(store: ObjectStore, lease: Lease, folder: Path) -> list[StoredArtifact]:
    stored = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = f"adapter/{path.relative_to(folder).as_posix()}"
        key, digest = keys.artifact(lease.job_id, lease.attempt, name), digest_of(path)
        content_type = mimetypes.guess_type(name)[0] or OCTETS
        store.put_file(key, path, sha256=digest, content_type=content_type)
        stored.append(StoredArtifact(name, key, path.stat().st_size, digest, content_type))
    return stored


def _put_evaluations(store: ObjectStore, lease: Lease, evaluations: Mapping[str, Evaluation]) -> list[StoredArtifact]:
    return [
        _put_json(store, lease, f"evaluations/{name}.json", evaluation.model_dump_json())
        for name, evaluation in evaluations.items()
    ]


def _put_json(store: ObjectStore, lease: Lease, name: str, text: str) -> StoredArtifact:
    key, data = keys.artifact(lease.job_id, lease.attempt, name), text.encode()
    digest = store.put_bytes(key, data, content_type=JSON)
    return StoredArtifact(name, key, len(data), digest, JSON)


def _gather(
    sessions: Sessions, lease: Lease, evaluations: Mapping[str, Evaluation], artifacts: Sequence[StoredArtifact]
) -> results.LedgerFacts:
    with sessions.begin() as session:
        leases.hold(session, lease)
        return results.LedgerFacts(
            job=session.get_one(Job, lease.job_id),
            attempts=progress.attempts(session, lease.job_id),
            evaluations=evaluations,
            artifacts=[
                ArtifactFacts(name=stored.name, size_bytes=stored.size_bytes, sha256=stored.sha256)
                for stored in artifacts
            ],
            now=progress.clock(session),
            held_seconds=progress.held_seconds(session, lease.job_id),
            redone_steps=progress.redone_steps(session, lease.job_id),
            findings=learning_findings(learning.run_numbers(session, lease.job_id, lease.spec)),
            taught=learning.taught(session, lease.job_id),
        )


def _show(
    sessions: Sessions,
    lease: Lease,
    artifacts: Sequence[StoredArtifact],
    *,
    best_step: int,
    sentence: str,
    trained_tokens: int,
) -> None:
    """The commit point: the job has succeeded, and everything that `results.json` names can be downloaded."""
    *_, results_file = artifacts
    with sessions.begin() as session:
        leases.hold(session, lease)
        for stored in artifacts:
            progress.show_artifact(
                session,
                lease.job_id,
                attempt=lease.attempt,
                name=stored.name,
                key=stored.key,
                size_bytes=stored.size_bytes,
                sha256=stored.sha256,
                content_type=stored.content_type,
            )
        checkpoints.mark_best(session, lease, step=best_step)
        file = files.add(session, _as_file(lease, results_file))
        leases.finish(
            session,
            lease,
            JobStatus.SUCCEEDED,
            message=sentence,
            results_file=file.id,
            trained_tokens=trained_tokens,
        )
        failpoint("publish.rows_written")


def _as_file(lease: Lease, stored: StoredArtifact) -> File:
    """OpenAI's clients find a job's results as a file."""
    return File(
        id=new_file_id(),
        tenant_id=lease.tenant_id,
        filename=stored.name,
        purpose="fine-tune-results",
        size_bytes=stored.size_bytes,
        sha256=stored.sha256,
        key=stored.key,
        job_id=lease.job_id,
    )
