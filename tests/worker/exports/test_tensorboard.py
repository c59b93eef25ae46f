"""TensorBoard reads what was written: every step once, with the numbers that count."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import keys
from core.db.models import Artifact
from core.ids import JobId
from core.storage.folder import FolderStore
from tests.worker.exports.exporting import Exporting
from worker import janitor

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


def test_a_file_of_an_exporter_that_was_killed_is_written_again_and_the_janitor_takes_the_other(exporting: Exporting):
    run = exporting.running_job(TENSORBOARD, steps=3)
    run.fail()
    exporting.fails_in_its_own_process(run.job_id, "export_broke", PODIUM_FAILPOINTS="export.file_put=kill")
    (torn,) = stored(exporting, run.job_id)
    assert exporting.workshop.artifacts(run.job_id) == {}
    exporting.due_now(run.job_id)
    exporting.export()
    shown = event_file(exporting, run.job_id).key
    assert stored(exporting, run.job_id) == {torn, shown}
    assert collected_later(exporting) == 1
    assert stored(exporting, run.job_id) == {shown}


def test_what_an_exporter_may_still_show_is_left_alone(exporting: Exporting):
    run = exporting.running_job(TENSORBOARD, steps=3)
    held = exporting.claim()
    for attempt in (held.attempt, held.attempt + 1):
        exporting.workshop.store.put_bytes(keys.export(run.job_id, held.target, attempt, "0" * 64), b"")
    assert collected_later(exporting) == 0
    assert len(stored(exporting, run.job_id)) == 2


def stored(exporting: Exporting, job_id: JobId) -> set[str]:
    return {info.key for info in exporting.workshop.store.list(f"jobs/{job_id}/exports/")}


def collected_later(exporting: Exporting) -> int:
    """How many files of nobody the janitor removes when everything is old."""
    workshop = exporting.workshop
    assert isinstance(workshop.store, FolderStore)
    for path in workshop.store.root.rglob("*"):
        os.utime(path, (0, 0))
    return janitor.collect(workshop.sessions, workshop.store, workshop.settings).publications
