"""Bundles as files, and runs as they are read from bundles."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cli.reproduction.record import Metrics, Record
from core.bundle import Bundle, BundledData, BundledJob, BundledReward
from core.ids import JobId
from core.results import ArtifactFacts, Environment, Evaluation, JobResults
from core.spec import DataRef, JobSpec, PinnedReward
from core.status import JobStatus
from tests.factories import REWARD_SOURCE, make_spec
from tests.samples import results_document

CPU = Environment(
    python="3.11.7", platform="Linux", device="cpu", driver=None, dtype="float32", libraries={"torch": "2.13.0"}
)
STEPS: Mapping[int, Metrics] = {
    1: {"reward": 0.25, "loss": -0.5, "step_time": 1.0, "phase/forward": 0.1},
    2: {"reward": 0.5, "loss": -0.25, "step_time": 2.0, "phase/forward": 0.2},
    3: {"reward": 0.75, "loss": None, "step_time": 3.0, "phase/forward": 0.3},
}
ROWS = b'{"prompt": "2+2", "answer": "4"}\n'


def make_bundle(**changes: Any) -> Bundle:
    spec: JobSpec = changes.get("spec") or make_spec()
    facts: dict[str, Any] = {
        "podium": "0.1.0",
        "job": make_job(),
        "spec": spec,
        "spec_sha256": "5" * 64,
        "start_model": None,
        "training": _data("training", spec.training),
        "held_out": None if spec.held_out is None else _data("held_out", spec.held_out),
        "rewards": tuple(_reward(term) for term in spec.rewards),
        "environment": CPU,
        "adapter_sha256": "0" * 64,
        "attempts": (),
        "members": (),
    }
    return Bundle(**(facts | changes))


def make_job(status: JobStatus = JobStatus.SUCCEEDED) -> BundledJob:
    return BundledJob(
        id=JobId("ftjob-1"),
        status=status,
        status_reason=None,
        created_at=1,
        started_at=2,
        finished_at=3,
        step=3,
        metadata={},
    )


def make_record(
    *,
    metrics: Mapping[int, Metrics] = STEPS,
    evaluations: Mapping[str, Evaluation] | None = None,
    results: Mapping[str, Any] | None = None,
    folder: Path = Path("nowhere"),
    **changes: Any,
) -> Record:
    """A run that succeeded; `results` are changes of its document."""
    document = JobResults.model_validate(results_document() | dict(results or {}))
    return Record(folder, make_bundle(**changes), document, metrics, evaluations or {})


def write_archive(path: Path, bundle: Bundle, files: Mapping[str, bytes]) -> Path:
    """With the members named as they are; `bundle` may say otherwise."""
    named = tuple(
        ArtifactFacts(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    )
    bundle = bundle if bundle.members else bundle.model_copy(update={"members": named})
    with tarfile.open(path, "w") as tar:
        for name, data in {"bundle.json": bundle.model_dump_json().encode(), **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def files_of_a_run() -> dict[str, bytes]:
    steps = [json.dumps({"step": step, "attempt": 1, "metrics": dict(metrics)}) for step, metrics in STEPS.items()]
    return {
        "results.json": json.dumps(results_document()).encode(),
        "metrics.jsonl": "".join(f"{line}\n" for line in steps).encode(),
        "events.jsonl": b"",
        "rewards/exact.py": REWARD_SOURCE.encode(),
        "data/training.jsonl": ROWS,
        "data/held_out.jsonl": ROWS,
    }


def _data(name: str, data: DataRef) -> BundledData:
    return BundledData(
        member=f"data/{name}.jsonl", filename=data.filename, format=data.format, sha256=data.sha256, rows=data.rows
    )


def _reward(term: Any) -> BundledReward:
    return BundledReward(
        name=term.name,
        form=term.form,
        source_sha256=term.source_sha256,
        member=f"rewards/{term.name}.py" if isinstance(term, PinnedReward) else None,
        credentials_sha256=getattr(term, "credentials_sha256", None),
    )
