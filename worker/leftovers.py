"""Run directories on this machine that nobody holds any more: of supervisors that were killed, and of runs long over.

A supervisor holds its directory by a lock that ends with its process, however that ends (flock(2)).
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger()

LOCK = ".held"
KEPT_S = 24 * 3600.0
"""Plan, log and outcome of a run stay for a day, for whoever asks why; so does what a killed one left."""


def hold(folder: Path) -> int:
    """Lock the directory until the returned descriptor is closed, or this process ends."""
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def sweep(runs_dir: Path, *, older_than_s: float = KEPT_S) -> None:
    """Remove what is old and held by nobody."""
    for folder in _old(runs_dir, time.time() - older_than_s):
        if not is_held(folder):
            log.info("leftover_run_removed", folder=str(folder.relative_to(runs_dir)))
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # another attempt of the job stands there
                folder.parent.rmdir()


def is_held(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _old(runs_dir: Path, before: float) -> Iterator[Path]:
    for folder in runs_dir.glob("*/a*"):
        with suppress(FileNotFoundError):  # another supervisor sweeps too
            if folder.stat().st_mtime < before:
                yield folder
