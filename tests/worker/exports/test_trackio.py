"""trackio's own storage reads what was written: each step once, over any number of exporters."""

from pathlib import Path

import pytest

from core.ids import JobId
from tests.api.jobs.runs import Run
from tests.worker.exports.exporting import Exporting
from worker.exports.feed import Feed
from worker.exports.run import make_target

sqlite_storage = pytest.importorskip("trackio.sqlite_storage", reason="trackio is not installed")

TRACKIO = {"type": "trackio", "trackio": {"project": "biography", "name": "first try"}}


@pytest.fixture
def folder(exporting: Exporting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where its storage looks; in an exporter it is named by the environment before the client is loaded."""
    folder = tmp_path / "trackio"
    for name in ("trackio.utils", "trackio.sqlite_storage", "trackio"):
        monkeypatch.setattr(f"{name}.TRACKIO_DIR", folder, raising=False)
    exporting.workshop.set(trackio_dir=folder)
    return folder


def logs(job_id: JobId) -> list[dict]:
    return sqlite_storage.SQLiteStorage.get_logs("biography", f"first try {job_id}")


def test_a_job_is_a_run_with_its_config_steps_evaluations_and_verdict(exporting: Exporting, folder: Path):
    job_id = exporting.happy_job(TRACKIO)
    exporting.export()
    rows = logs(job_id)
    assert [(row["step"], row.get("reward")) for row in rows] == [(0, None), (1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
    assert (rows[0]["eval/greedy/pass_rate"], rows[-1]["eval/greedy/pass_rate"]) == (0.4, 0.8)
    assert (rows[-1]["verdict"], rows[-1]["verdict/fixed"]) == ("improved", 8)
    config = sqlite_storage.SQLiteStorage.get_run_config("biography", f"first try {job_id}")
    assert config["spec.hyperparameters.max_steps"] == 4
    assert exporting.row(job_id).finished_at is not None


def test_a_run_goes_on_where_it_was_and_replayed_steps_are_not_doubled(exporting: Exporting, folder: Path):
    run = exporting.running_job(TRACKIO, steps=3)
    exporting.export()
    second = run.again()
    second.resume_from(1)
    for step in (2, 3, 4):
        second.step(step, reward=step / 10)
    exporting.export()
    second.fail()
    exporting.export()
    attempts = [(row["step"], row["podium/attempt"]) for row in logs(run.job_id)]
    assert attempts == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]


def test_how_the_job_ended_is_told_where_no_step_is_left_to_tell_it_in(exporting: Exporting, folder: Path):
    run = Run.claim(exporting.workshop.sessions, exporting.workshop.store, exporting.queue(TRACKIO))
    run.fail()
    exporting.export()
    (row,) = logs(run.job_id)
    assert (row["step"], row["status"]) == (0, "failed")


def test_an_exporter_that_died_after_the_end_was_sent_sends_no_second_one(exporting: Exporting, folder: Path):
    run = exporting.running_job(TRACKIO, steps=2)
    run.fail()
    dies = {"PODIUM_FAILPOINTS": "export.finished=kill", "TRACKIO_DIR": str(folder)}
    exporting.fails_in_its_own_process(run.job_id, "export_broke", **dies)
    exporting.due_now(run.job_id)
    exporting.export()
    assert [row["step"] for row in logs(run.job_id)] == [0, 1, 2]
    assert logs(run.job_id)[-1]["status"] == "failed"


def test_a_run_that_has_every_step_and_no_end_gets_one_once(exporting: Exporting, folder: Path):
    """As a client leaves it that wrote the last step and lost the rest."""
    exporting.happy_job(TRACKIO)
    place, claim = exporting.place, exporting.claim()
    integration, facts = Feed(place.sessions, place.store, claim, lease_s=60).begin()
    news = Feed(place.sessions, place.store, claim, lease_s=60).everything()
    for _ in range(2):
        stream = make_target(integration, claim, place)
        last = stream.open(facts)
        stream.send([point for point in news.points if point.step > last])
        stream.finish((), news.conclusion)
    rows = logs(claim.job_id)
    assert [(row["step"], row.get("status")) for row in rows[-2:]] == [(4, None), (4, "succeeded")]
    assert len(rows) == 6
