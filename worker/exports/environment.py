"""Which variables the process that talks to one target sees: the clients of the others' keys stay behind."""

from collections.abc import Mapping
from pathlib import Path

from core.integrations import ExportTarget
from core.settings import Settings
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


def export_environment(
    environment: Mapping[str, str], settings: Settings, target: ExportTarget, *, temporary: Path
) -> dict[str, str]:
    """`temporary` is a folder that is removed when the process has ended."""
    prefixes = LEDGER + CLIENTS[target]
    kept = {name: value for name, value in environment.items() if name in PASSED_ON or name.startswith(prefixes)}
    trackio = {} if settings.trackio_dir is None else {"TRACKIO_DIR": str(settings.trackio_dir)}
    return kept | (trackio if target is ExportTarget.TRACKIO else {}) | {"TMPDIR": str(temporary)}
