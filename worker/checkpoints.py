"""Checkpoints between disk and store. Objects under an immutable prefix, then a manifest, then the fenced row.

The row is the commit point: what has no row was never a checkpoint. A resume verifies every digest on the way back
and falls back to the newest checkpoint that is whole.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy.orm import Session

from core import keys
from core.db import checkpoints as committed
from core.db import events, leases
from core.db.leases import Lease
from core.db.models import Checkpoint
from core.db.session import LEDGER_AWAY, Sessions
from core.failpoints import failpoint
from core.storage.store import (
    DigestMismatch,
    ObjectNotFound,
    ObjectStore,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
    digest_of,
)
from worker.run_directory import CheckpointSaved, CheckpointScored

log = structlog.get_logger()

RETRYABLE = (StoreUnavailable, StoreMisconfigured, DigestMismatch, *LEDGER_AWAY)
"""Failures of `commit` that a later try may not meet: even a wrong permission is mended while a run goes on."""


def commit(
    sessions: Sessions,
    store: ObjectStore,
    lease: Lease,
    folder: Path,
    saved: CheckpointSaved,
    scored: Callable[[], CheckpointScored | None] = lambda: None,
) -> float:
    """Make a saved checkpoint durable; the seconds that its way into the store took. May be repeated after a failure;
    raises `LeaseLost` when fenced.

    `scored` is asked while the job is held: an evaluation of it may have ended during the upload.
    """
    prefix = keys.checkpoint(lease.job_id, saved.step, lease.attempt)
    failpoint("checkpoint.begin")
    began = time.monotonic()
    files = put_folder(store, folder, prefix)
    failpoint("checkpoint.files_put")
    manifest = json.dumps({"job_id": lease.job_id, "step": saved.step, "attempt": lease.attempt, "files": files})
    digest = store.put_bytes(keys.manifest(prefix), manifest.encode(), content_type="application/json")
    upload_s = round(time.monotonic() - began, 3)
    failpoint("checkpoint.manifest_put")
    with sessions.begin() as session:
        leases.hold(session, lease)
        added = committed.add(
            session,
            lease,
            step=saved.step,
            prefix=prefix,
            manifest_sha256=digest,
            files=files,
            metrics=saved.metrics,
            is_best=saved.is_best,
        )
        score = scored()
        if score is not None:
            add_score(session, lease, score)
        if added:
            is_best = saved.is_best or (score is not None and score.is_best)
            size_bytes = sum(file["size_bytes"] for file in files)
            seconds = {"save_s": round(saved.save_s, 3), "upload_s": upload_s}
            data = {"step": saved.step, "size_bytes": size_bytes, **seconds, "best": is_best}
            message = f"Step {saved.step} is durable."
            events.add(session, lease.job_id, code="checkpoint", message=message, data=data)
        failpoint("checkpoint.row_written")
    failpoint("checkpoint.committed")
    log.info("checkpoint_committed", step=saved.step)
    _retire_superseded(sessions, store, lease)
    return upload_s


def add_score(session: Session, lease: Lease, scored: CheckpointScored) -> None:
    """Onto the row, if the checkpoint has one already. While the job is held."""
    committed.add_score(session, lease, step=scored.step, metrics=scored.metrics, is_best=scored.is_best)


def put_folder(store: ObjectStore, folder: Path, prefix: str) -> list[dict[str, Any]]:
    """Upload every file of `folder` under `prefix`: `[{name, size_bytes, sha256}]`, by name."""
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, digest = path.relative_to(folder).as_posix(), digest_of(path)
        store.put_file(prefix + name, path, sha256=digest)
        failpoint("checkpoint.file_put")
        files.append({"name": name, "size_bytes": path.stat().st_size, "sha256": digest})
    return files


def restore_newest(sessions: Sessions, store: ObjectStore, lease: Lease, folder: Path) -> int | None:
    """Fetch the newest checkpoint that is whole into `folder`, and return its step; None when there is none.

    Raises `StoreUnavailable`: a store that is away says nothing about its objects.
    """
    with sessions.begin() as session:
        candidates = list(committed.usable(session, lease.job_id))
    for checkpoint in candidates:
        shutil.rmtree(folder, ignore_errors=True)  # files of the checkpoint that turned out to be damaged
        try:
            _fetch(store, checkpoint, folder)
        except (ObjectNotFound, DigestMismatch) as error:
            _report_corrupt(sessions, lease, checkpoint, error)
        else:
            return checkpoint.step
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _retire_superseded(sessions: Sessions, store: ObjectStore, lease: Lease) -> None:
    """Give up the checkpoints that retention does not keep, then delete their objects.

    No attempt reads those any more: this one restored before it saved, a later one sees the rows that say so first,
    and what a branch needs is not among them. A ledger or store that is away costs space, which the janitor wins back;
    the new checkpoint is durable all the same.
    """
    try:
        with sessions.begin() as session:
            leases.hold(session, lease)
            given_up = committed.collect_superseded(session, lease.job_id, keep=lease.spec.checkpoints.keep)
        failpoint("retention.committed")
        for checkpoint in given_up:
            store.delete_prefix(checkpoint.prefix)
            log.info("checkpoint_retired", step=checkpoint.step, of_attempt=checkpoint.attempt)
    except (StoreError, *LEDGER_AWAY) as error:
        log.warning("superseded_checkpoints_stay", error=str(error).splitlines()[0])


def _fetch(store: ObjectStore, checkpoint: Checkpoint, folder: Path) -> None:
    """Digests come from our own row; the manifest must agree with it."""
    manifest = store.get_bytes(keys.manifest(checkpoint.prefix))
    if hashlib.sha256(manifest).hexdigest() != checkpoint.manifest_sha256:
        raise DigestMismatch(f"the manifest of step {checkpoint.step} was changed")
    files: Sequence[dict[str, Any]] = checkpoint.files
    for file in files:
        failpoint("restore.file")
        store.get_file(checkpoint.prefix + file["name"], folder / file["name"], sha256=file["sha256"])


def _report_corrupt(sessions: Sessions, lease: Lease, checkpoint: Checkpoint, error: Exception) -> None:
    log.error("checkpoint_corrupt", step=checkpoint.step, error=str(error))
    with sessions.begin() as session:
        leases.hold(session, lease)
        committed.mark_corrupt(session, lease, checkpoint.id)
        events.add(
            session,
            lease.job_id,
            code="checkpoint_corrupt",
            level="warn",
            message=f"The checkpoint of step {checkpoint.step} is damaged; an older one is tried.",
            data={"step": checkpoint.step, "attempt": checkpoint.attempt, "error": str(error)},
        )
