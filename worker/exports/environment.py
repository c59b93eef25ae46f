"""Which variables the process that talks to one target sees: the clients of the others' keys stay behind."""

from collections.abc import Mapping
from pathlib import Path

from core.settings import ExportTarget, Settings
from worker.trainer_process import PASSED_ON

LEDGER = ("PODIUM_", "AWS_")
"""For reading the job and its results."""
CLIENTS = {
    ExportTarget.WANDB: ("WANDB_",),
    ExportTarget.MLFLOW: ("MLFLOW_", "DATABRICKS_"),
    ExportTarget.TENSORBOARD: (),
    ExportTarget.TRACKIO: (),
}
"""By the first letters of their names."""
SHORT_RETRIES = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
"""It would try for minutes, and a call has two: the exporter tries again by itself."""


def export_environment(
    environment: Mapping[str, str], settings: Settings, target: ExportTarget, *, temporary: Path
) -> dict[str, str]:
    """`temporary` is a folder that is removed when the process has ended. What is empty is unset."""
    kept = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith(LEDGER)}
    own = {name: value for name, value in environment.items() if value and name.startswith(CLIENTS[target])}
    return kept | _defaults(settings, target) | own | {"TMPDIR": str(temporary)}


def _defaults(settings: Settings, target: ExportTarget) -> dict[str, str]:
    if target is ExportTarget.MLFLOW:
        return SHORT_RETRIES
    if target is ExportTarget.TRACKIO and settings.trackio_dir is not None:
        return {"TRACKIO_DIR": str(settings.trackio_dir)}
    return {}
