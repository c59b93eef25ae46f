"""MLflow's own client reads what was written into its own database: each step once, whoever died on the way."""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from core.ids import JobId
from tests.factories import event_codes
from tests.polling import wait_until
from tests.ports import free_port
from tests.worker.exports.exporting import Exporting

mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")

pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
"""Of MLflow's use of SQLAlchemy 2.1."""
MLFLOW = {"type": "mlflow", "mlflow": {"project": "biography", "name": "first try", "tags": ["grpo"]}}


@pytest.fixture
def uri(exporting: Exporting, tmp_path: Path) -> str:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    exporting.workshop.set(mlflow_tracking_uri=SecretStr(uri))
    return uri


def the_run(uri: str, job_id: JobId) -> Any:
    """The one run of the job."""
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("biography")
    (run,) = [run for run in client.search_runs([experiment.experiment_id]) if run.info.run_name == "first try"]
    assert run.data.tags["podium.job_id"] == job_id
    return run


def history(uri: str, run: Any, name: str) -> list[tuple[int, float]]:
    found = mlflow.MlflowClient(uri).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in found]


def test_a_job_is_a_run_with_its_config_steps_evaluations_and_verdict(exporting: Exporting, uri: str):
    job_id = exporting.happy_job(MLFLOW)
    exporting.export()
    run = the_run(uri, job_id)
    assert run.info.status == "FINISHED"
    assert history(uri, run, "reward") == [(step, step / 10) for step in range(1, 5)]
    assert history(uri, run, "eval/greedy/pass_rate") == [(0, 0.4), (4, 0.8)]
    assert run.data.metrics["verdict/fixed"] == 8
    assert run.data.tags["podium.verdict"] == "improved"
    assert run.data.tags["grpo"] == "true"
    assert run.data.params["spec.hyperparameters.max_steps"] == "4"
    assert len(run.data.params["spec.training.sha256"]) == 64
    assert event_codes(exporting.workshop.sessions, job_id)[-2:] == ["export_started", "exported"]


def test_a_run_goes_on_where_it_was_and_replayed_steps_are_not_doubled(exporting: Exporting, uri: str):
    run = exporting.running_job(MLFLOW, steps=3)
    exporting.export()
    assert history(uri, the_run(uri, run.job_id), "reward") == [(1, 0.1), (2, 0.2)]
    second = run.again()
    second.resume_from(1)
    for step in (2, 3, 4):
        second.step(step, reward=step / 10)
    exporting.export()
    second.fail()
    exporting.export()
    found = the_run(uri, run.job_id)
    assert found.info.status == "FAILED"
    assert history(uri, found, "reward") == [(step, step / 10) for step in range(1, 5)]
    assert history(uri, found, "podium/attempt") == [(0, 1), (1, 1), (2, 1), (3, 2), (4, 2)]


def test_nothing_is_doubled_or_missing_when_exporters_are_killed_between_two_calls(exporting: Exporting, uri: str):
    """The client has answered, and nobody has written that down."""
    exporting.workshop.set(export_retry_s=0.1)
    run = exporting.running_job(MLFLOW, steps=3)
    exporter = exporting.start(MLFLOW_TRACKING_URI=uri, PODIUM_FAILPOINTS="export.sent=kill")
    wait_until(lambda: "export_broke" in exporting.warnings(run.job_id), what="a process was killed")
    exporter.kill()
    run.step(4, reward=0.4)
    run.fail()
    exporting.start(MLFLOW_TRACKING_URI=uri, PODIUM_FAILPOINTS="export.finished@1=30%kill")
    wait_until(lambda: exporting.row(run.job_id).finished_at, what="the export is done", timeout_s=180)
    found = the_run(uri, run.job_id)
    assert history(uri, found, "reward") == [(step, step / 10) for step in range(1, 5)]
    assert history(uri, found, "eval/greedy/pass_rate") == [(0, 0.4)]


def test_a_server_that_is_away_holds_up_nothing_and_has_everything_once_it_is_back(exporting: Exporting, uri: str):
    """Its password stands in the address, which MLflow's own errors name."""
    run = exporting.running_job(MLFLOW, steps=3)
    away = f"http://podium:s3cret%21@127.0.0.1:{free_port()}"
    environment = {"MLFLOW_TRACKING_URI": away, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    exporting.fails_in_its_own_process(run.job_id, "export_failed", **environment)
    assert "API request to" in exporting.log()
    for text in ("s3cret%21", "s3cret!"):
        assert text not in exporting.log() + exporting.told(run.job_id)
    run.step(4, reward=0.4)
    run.fail()
    exporting.due_now(run.job_id)
    exporting.export()
    assert history(uri, the_run(uri, run.job_id), "reward") == [(step, step / 10) for step in range(1, 5)]
    assert event_codes(exporting.workshop.sessions, run.job_id)[-1] == "exported"


def test_a_server_that_opens_runs_and_takes_no_numbers_is_tried_ever_more_rarely(exporting: Exporting, uri: str):
    run = exporting.running_job(MLFLOW, steps=2)
    exporting.export()
    refuse = "CREATE TRIGGER refuse BEFORE INSERT ON metrics BEGIN SELECT RAISE(ABORT, 'no room'); END"
    with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database:
        database.execute(refuse)
        run.step(3, reward=0.3)
        run.fail()
        for failures in (1, 2):
            exporting.due_now(run.job_id)
            exporting.export()
            assert (exporting.row(run.job_id).failures, exporting.warnings(run.job_id)) == (failures, ["export_failed"])
        database.execute("DROP TRIGGER refuse")
    exporting.due_now(run.job_id)
    exporting.export()
    assert history(uri, the_run(uri, run.job_id), "reward") == [(step, step / 10) for step in range(1, 4)]
    assert exporting.row(run.job_id).failing_since is None


def test_the_exporter_leaves_its_runs_when_it_is_told_to_go(exporting: Exporting, uri: str):
    run = exporting.running_job(MLFLOW, steps=3)
    exporter = exporting.start(MLFLOW_TRACKING_URI=uri)
    wait_until(lambda: exporting.row(run.job_id).started_at, what="the export runs", timeout_s=120)
    exporter.send_signal(signal.SIGTERM)
    assert exporter.wait(60) == 0
    row = exporting.row(run.job_id)
    assert (row.lease_expires_at, row.finished_at, row.failures) == (None, None, 0)
    assert the_run(uri, run.job_id).info.status == "SCHEDULED"
