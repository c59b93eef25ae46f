"""What an exporter lacks is told to the job's owner, with what the operator has to do."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from core.settings import ExportTarget, Settings
from tests.worker.exports.exporting import Exporting
from worker.exports.environment import export_environment
from worker.exports.secrets import secrets_of

WANDB = {"type": "wandb", "wandb": {"project": "p"}}
MLFLOW = {"type": "mlflow", "mlflow": {"project": "p"}}
TRACKIO = {"type": "trackio", "trackio": {"project": "p"}}
EVERYTHING = {
    "PATH": "/bin",
    "PODIUM_DATABASE_URL": "postgresql://ledger",
    "WANDB_API_KEY": "of wandb",
    "WANDB_ENTITY": "",
    "MLFLOW_TRACKING_URI": "of mlflow",
    "DATABRICKS_TOKEN": "of databricks",
    "HF_TOKEN": "of the hub",
}


@pytest.mark.parametrize(
    ("integration", "changes"),
    [
        (WANDB, {}),
        (WANDB, {"wandb_api_key": SecretStr("")}),
        (WANDB, {"wandb_mode": "disabled", "wandb_api_key": SecretStr("k")}),
        (WANDB, {"wandb_mode": "offline"}),
        (MLFLOW, {}),
        (TRACKIO, {}),
    ],
)
def test_what_is_not_set_up_is_a_warning_with_a_fix(exporting: Exporting, integration: dict[str, Any], changes: Any):
    exporting.workshop.set(**changes)
    run = exporting.running_job(integration, steps=2)
    exporting.export()
    (code,) = exporting.warnings(run.job_id)
    is_installed = find_spec(integration["type"]) is not None
    assert code == ("export_not_configured" if is_installed else "export_package_missing")
    assert "exporter" in exporting.workshop.event(run.job_id, code)["fix"]


@pytest.mark.parametrize(
    ("target", "own"),
    [
        (ExportTarget.WANDB, {"WANDB_API_KEY"}),
        (ExportTarget.MLFLOW, {"MLFLOW_TRACKING_URI", "DATABRICKS_TOKEN"}),
        (ExportTarget.TENSORBOARD, set()),
        (ExportTarget.TRACKIO, set()),
    ],
)
def test_the_process_of_a_target_sees_no_key_of_another(target: ExportTarget, own: set[str], tmp_path: Path):
    settings = Settings(_env_file=None)
    seen = export_environment(EVERYTHING, settings, target, temporary=tmp_path)
    keys = {name for name, value in EVERYTHING.items() if value.startswith("of ")}
    assert seen.keys() & keys == own
    assert {"PATH", "PODIUM_DATABASE_URL"} < seen.keys()
    assert "WANDB_ENTITY" not in seen
    assert seen["TMPDIR"] == str(tmp_path)


def test_what_an_operator_says_of_retries_holds(tmp_path: Path):
    settings = Settings(_env_file=None)
    wish = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
    seen = export_environment(wish, settings, ExportTarget.MLFLOW, temporary=tmp_path)
    assert seen["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "5"
    assert seen["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "2"


def test_secrets_are_found_wherever_they_were_set():
    settings = Settings(
        _env_file=None,
        wandb_api_key=SecretStr("from a file"),
        mlflow_tracking_uri=SecretStr("https://me:p%40ss@mlflow.example"),
    )
    environment = {"DATABRICKS_TOKEN": "dapi", "WANDB_ENTITY": "team", "MLFLOW_TRACKING_PASSWORD": ""}
    assert set(secrets_of(settings, environment)) == {
        "from a file", "https://me:p%40ss@mlflow.example", "p%40ss", "p@ss", "dapi",
    }  # fmt: skip


@pytest.mark.parametrize(("text", "names"), [("wandb, mlflow", ("wandb", "mlflow")), ("", ())])
def test_what_is_offered_is_names_with_commas(monkeypatch: pytest.MonkeyPatch, text: str, names: tuple[str, ...]):
    monkeypatch.setenv("PODIUM_INTEGRATIONS", text)
    assert Settings(_env_file=None).integrations == names
