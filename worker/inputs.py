"""Lays out a run directory: data, reward sources, the newest whole checkpoint, the baseline of an earlier attempt."""

import hashlib
import json
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from core import keys
from core.db import checkpoints as committed
from core.db import events, jobs, leases, progress, rewards, signal_probes
from core.db.leases import Lease
from core.db.models import Job
from core.db.session import Sessions
from core.errors import InvalidReward, NotFound
from core.results import Evaluation
from core.settings import Settings
from core.signal_report import ProbeSize
from core.spec import AdapterMethod, CheckpointRef, DataRef, ModelSource, PinnedReward, RewardTerm
from core.status import JobKind
from core.storage.store import DigestMismatch, ObjectNotFound, ObjectStore, require_digest
from worker import checkpoints
from worker.run_directory import RunDirectory, RunPlan

log = structlog.get_logger()


class ModelGone(NotFound):
    """A job names a local model that this worker does not have. Another one may; or its operator puts it there."""

    code = "model_not_registered"
    retryable = True
    default_fix = (
        "Put the model's folder on the workers, and add it to PODIUM_MODELS there, as on the API; resume the job if it "
        "is paused then."
    )


class CheckpointGone(NotFound):
    """The checkpoint that a branch begins with cannot be fetched whole."""

    code = "checkpoint_gone"
    default_fix = "Branch from another checkpoint: GET /v1/fine_tuning/jobs/{id}/checkpoints lists those there are."


def prepare(sessions: Sessions, store: ObjectStore, lease: Lease, settings: Settings, run: RunDirectory) -> None:
    """Put everything that the trainer needs into `run`. May be repeated; removes what earlier attempts left here.

    Raises errors of the store, `InvalidReward`, `ModelGone`, `NotFound`.
    """
    _remove_up_to(run.path)
    run.path.mkdir(parents=True)
    _fetch_data(store, lease.spec.training, run.training_file)
    if lease.spec.held_out is not None:
        _fetch_data(store, lease.spec.held_out, run.held_out_file)
    _write_rewards(sessions, lease, run)
    step = checkpoints.restore_newest(sessions, store, lease, run.resume)
    _write_evaluations(sessions, lease, run, step)
    if lease.spec.start_from is not None and (step is None or lease.spec.adapter.method is AdapterMethod.FULL):
        _fetch_start(store, lease.spec.start_from, run.start)
    costs = _checkpoint_costs(sessions, lease)
    run.create(
        RunPlan(
            job_id=lease.job_id,
            attempt=lease.attempt,
            spec=lease.spec,
            model_path=_model_path(lease, settings),
            probe=_probe_size(sessions, lease),
            resume_step=step,
            stop_grace_s=settings.stop_grace_s,
            mean_time_between_preemptions_s=settings.mean_time_between_preemptions_s,
            save_cost_s=costs.get("save_s", 0.0),
        )
    )
    if "upload_s" in costs:
        run.write_upload_s(costs["upload_s"])
    if lease.attempt > 1:
        _note_resume(sessions, lease, step)  # after all that may fail, and be tried again


def _remove_up_to(own: Path) -> None:
    """This attempt's folder and its elders'. A supervisor that slept past its lease must spare a later attempt's.

    An elder's supervisor may be removing its own at this moment, if the job was given back a moment ago.
    """
    for folder in own.parent.glob("a*"):
        if (len(folder.name), folder.name) <= (len(own.name), own.name):
            shutil.rmtree(folder, ignore_errors=True)


def _fetch_data(store: ObjectStore, data: DataRef, path: Path) -> None:
    store.get_file(keys.data_file(data.file_id), path, sha256=data.sha256)


def _fetch_start(store: ObjectStore, start: CheckpointRef, folder: Path) -> None:
    """The weights and their configuration; the optimizer and all else of the other job's run stay behind."""
    try:
        manifest = store.get_bytes(keys.manifest(start.prefix))
        require_digest(hashlib.sha256(manifest).hexdigest(), start.manifest_sha256, "The manifest")
        for file in json.loads(manifest)["files"]:
            if file["name"].endswith((".safetensors", ".json")):
                store.get_file(start.prefix + file["name"], folder / file["name"], sha256=file["sha256"])
    except (ObjectNotFound, DigestMismatch) as error:
        message = f"Step {start.step} of {start.job_id}, with which the job begins, is gone or damaged: {error}"
        raise CheckpointGone(message, param="model") from error


def _write_rewards(sessions: Sessions, lease: Lease, run: RunDirectory) -> None:
    for term in lease.spec.rewards:
        digest = term.source_sha256 if isinstance(term, PinnedReward) else term.credentials_sha256
        if digest is None:
            continue
        source = _reward_source(sessions, lease, term)
        if hashlib.sha256(source.encode()).hexdigest() != digest:
            raise InvalidReward(f"The source of reward {term.name!r} is not the one that the job was created with.")
        path = run.reward_source(term.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)  # credentials may be in it
        path.write_text(source, encoding="utf-8")


def _reward_source(sessions: Sessions, lease: Lease, term: RewardTerm) -> str:
    with sessions.begin() as session:
        if term.version_id is None:
            source = jobs.inline_source(session, lease.job_id, term.name)
        else:
            version = rewards.version(session, term.version_id)
            source = version.source if version else None
    if source is None:
        raise NotFound(f"Reward {term.name!r} of the job is gone.", param="method.grpo.rewards")
    return source


def _write_evaluations(sessions: Sessions, lease: Lease, run: RunDirectory, step: int | None) -> None:
    """What an earlier attempt has graded is kept: the baseline, and the evaluation of the policy to go on from."""
    with sessions.begin() as session:
        records = [progress.evaluation(session, lease.job_id, "baseline")]
        if step is not None and (checkpoint := committed.at_step(session, lease.job_id, step)) is not None:
            records.append(progress.evaluation_of(session, checkpoint))
    for record in records:
        if record is not None:
            run.write_evaluation(record.name, Evaluation.model_validate(record.evaluation))


def _note_resume(sessions: Sessions, lease: Lease, step: int | None) -> None:
    with sessions.begin() as session:
        leases.hold(session, lease)
        reached = session.get_one(Job, lease.job_id, populate_existing=True).step
        progress.set_resumed_from(session, lease, step)
        redone = max(0, reached - (step or 0))
        begin = "Starting again: no checkpoint was durable" if step is None else f"Going on from step {step}"
        message = f"{begin}; {redone} steps are done again."
        code, data = "restarted" if step is None else "resumed", {"step": step, "redone_steps": redone}
        events.add(session, lease.job_id, code=code, message=message, data=data)


def _checkpoint_costs(sessions: Sessions, lease: Lease) -> Mapping[str, Any]:
    """What the newest checkpoint took, until this attempt knows better."""
    with sessions() as session:
        event = events.newest(session, lease.job_id, code="checkpoint")
    return {} if event is None else event.data


def _probe_size(sessions: Sessions, lease: Lease) -> ProbeSize | None:
    if lease.kind is not JobKind.SIGNAL_PROBE:
        return None
    with sessions() as session:
        return signal_probes.size_of(session, lease.job_id)


def _model_path(lease: Lease, settings: Settings) -> Path | None:
    model = lease.spec.model
    if model.source is ModelSource.HUB:
        return None
    path = settings.models.get(model.name)
    if path is None:
        raise ModelGone(f"No model {model.name!r} is registered on worker {socket.gethostname()}.", param="model")
    if not path.is_dir():
        message = f"The folder of model {model.name!r} is not on worker {socket.gethostname()}."
        raise ModelGone(message, param="model")
    return path.resolve()
