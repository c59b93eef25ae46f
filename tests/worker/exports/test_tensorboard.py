"""TensorBoard reads what was written: every step once, with the numbers that count."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from core.db.models import Artifact
from core.ids import JobId
from tests.worker.exports.exporting import Exporting

event_accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
)

TENSORBOARD = {"type": "tensorboard"}


def event_file(exporting: Exporting, job_id: JobId) -> Artifact:
    (artifact,) = [a for name, a in exporting.workshop.artifacts(job_id).items() if name.startswith("tensorboard/")]
    return artifact


def scalars(exporting: Exporting, job_id: JobId, folder: Path) -> Mapping[str, list[tuple[int, float]]]:
    """As TensorBoard's own reader finds them in the downloaded file."""
    artifact = event_file(exporting, job_id)
    path = folder / artifact.name
    path.parent.mkdir(parents=True)
    path.write_bytes(exporting.workshop.store.get_bytes(artifact.key))
    reader = event_accumulator.EventAccumulator(str(path.parent))
    reader.Reload()
    return {tag: [(s.step, pytest.approx(s.value)) for s in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_the_event_file_of_a_job_has_each_step_the_evaluations_and_the_verdict(exporting: Exporting, tmp_path: Path):
    job_id = exporting.happy_job(TENSORBOARD)
    exporting.export()
    found = scalars(exporting, job_id, tmp_path)
    assert found["reward"] == [(step, step / 10) for step in range(1, 5)]
    assert found["eval/greedy/pass_rate"] == [(0, 0.4), (4, 0.8)]
    assert found["final/greedy/pass_rate"] == [(4, 0.8)]
    assert found["verdict/fixed"] == [(4, 8)]
    assert exporting.row(job_id).finished_at is not None
    assert exporting.warnings(job_id) == []


def test_a_step_that_was_done_again_has_the_numbers_that_count(exporting: Exporting, tmp_path: Path):
    run = exporting.running_job(TENSORBOARD, steps=3)
    exporting.export()
    assert scalars(exporting, run.job_id, tmp_path / "early")["reward"] == [(1, 0.1), (2, 0.2)]
    second = run.again()
    second.resume_from(1)
    second.step(2, reward=0.7)
    exporting.export()
    assert scalars(exporting, run.job_id, tmp_path / "late")["reward"] == [(1, 0.1)]
    second.step(3, reward=0.8)
    second.fail()
    exporting.export()
    assert scalars(exporting, run.job_id, tmp_path / "end")["reward"] == [(1, 0.1), (2, 0.7), (3, 0.8)]


def test_a_file_that_was_replaced_leaves_the_store(exporting: Exporting):
    run = exporting.running_job(TENSORBOARD, steps=3)
    exporting.export()
    first = event_file(exporting, run.job_id).key
    run.step(4, reward=0.4)
    exporting.export()
    second = event_file(exporting, run.job_id).key
    assert second != first
    assert exporting.workshop.store.head(first) is None
    assert exporting.workshop.store.head(second) is not None
