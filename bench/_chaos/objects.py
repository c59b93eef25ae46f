"""What the ledger promises of the store, taken at its word: checkpoints and results, byte for byte."""

import hashlib
import json
from collections.abc import Iterator, Sequence

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from bench._chaos.trainer import STATE, WEIGHTS, State
from bench._chaos.weights import weights
from core import keys
from core.db import progress
from core.db.models import Checkpoint, Job
from core.results import JobResults
from core.storage.store import ObjectNotFound, ObjectStore


def checkpoints(session: Session, job: Job) -> Sequence[Checkpoint]:
    """All of them, also those that were given up."""
    return session.scalars(select(Checkpoint).where(Checkpoint.job_id == job.id).order_by(Checkpoint.step)).all()


def problem_of(store: ObjectStore, job: Job, checkpoint: Checkpoint) -> str | None:
    """Why it cannot be loaded as what its row says it is; None if it can."""
    try:
        manifest = store.get_bytes(keys.manifest(checkpoint.prefix))
        contents = {file["name"]: store.get_bytes(checkpoint.prefix + file["name"]) for file in checkpoint.files}
    except ObjectNotFound as error:
        return error.message
    if _sha256(manifest) != checkpoint.manifest_sha256 or json.loads(manifest)["files"] != checkpoint.files:
        return "its manifest is another one"
    for file in checkpoint.files:
        if _sha256(contents[file["name"]]) != file["sha256"]:
            return f"{file['name']} is not what was committed"
    return _untrue_content(job, checkpoint, contents)


def missing_results(session: Session, store: ObjectStore, job: Job) -> Iterator[str]:
    """What `results.json` of a succeeded job names, and is not there as named; what the adapter should hold."""
    stored = {artifact.name: artifact for artifact in progress.artifacts(session, job.id)}
    contents: dict[str, bytes] = {}
    for name, artifact in stored.items():
        try:
            contents[name] = store.get_bytes(artifact.key)
        except ObjectNotFound:
            yield f"artifact {name} has no object"
            continue
        if _sha256(contents[name]) != artifact.sha256:
            yield f"artifact {name} is not what its row says"
    results = contents.get("results.json")
    if results is None or job.results_file is None:
        yield "there is no results.json"
        return
    for named in JobResults.model_validate_json(results).artifacts:
        if named.name not in stored or stored[named.name].sha256 != named.sha256:
            yield f"results.json names {named.name}, which cannot be had as named"
    if contents.get(f"adapter/{WEIGHTS}") != weights(job.seed, _last_step(job)).encode():
        yield "the adapter is not what these steps make"


def _untrue_content(job: Job, checkpoint: Checkpoint, contents: dict[str, bytes]) -> str | None:
    right = weights(job.seed, checkpoint.step)
    expected = State(job_id=job.id, seed=job.seed, step=checkpoint.step, attempt=checkpoint.attempt, weights=right)
    try:
        state = State.model_validate_json(contents[STATE])
    except (KeyError, ValidationError) as error:
        return f"its state cannot be read: {error}"
    if state != expected or contents.get(WEIGHTS) != right.encode():
        return f"it holds {state}"
    return None


def _last_step(job: Job) -> int:
    return int(job.spec["hyperparameters"]["max_steps"])


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
