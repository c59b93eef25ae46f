"""Temporary files of one process, of the grading worker or the exporter: in a folder that it holds, so that others can
tell who is gone.

What is killed removes nothing. As with run directories (`worker.leftovers`), the lock ends with its process.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import structlog

from worker import leftovers

log = structlog.get_logger()

PREFIX = "podium-process-"
_NOT_YET_HELD = ".podium-process-new-"


def hold_folder() -> Path:
    """From here on this process makes its temporary files in a folder of its own, beside those of the others."""
    folder = Path(tempfile.mkdtemp(prefix=_NOT_YET_HELD))
    leftovers.hold(folder)  # until the process ends; before the folder has the name under which it is swept
    held = folder.with_name(folder.name.replace(_NOT_YET_HELD, PREFIX, 1))
    folder.rename(held)
    tempfile.tempdir = str(held)
    return held


def sweep() -> None:
    """Remove the folders of processes that are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(FileNotFoundError, PermissionError):  # another process sweeps too; another user's stay
            if _is_ours(folder) and not leftovers.is_held(folder):
                shutil.rmtree(folder, ignore_errors=True)
                log.info("leftover_folder_removed", folder=folder.name)


def _is_ours(folder: Path) -> bool:
    facts = folder.lstat()
    return facts.st_uid == os.geteuid() and folder.is_dir() and not folder.is_symlink()
