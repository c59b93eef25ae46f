"""A real grading worker: Celery, its pool, sandboxes below it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from core.queue import GRADING_QUEUE
from core.settings import CHECKOUT, Settings
from tests.polling import wait_until

QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@contextmanager
def running_grading_worker(settings: Settings, log: Path, *, concurrency: int = 2) -> Iterator[psutil.Popen]:
    """Ready for hints; killed at the end, with all that it started."""
    command = (sys.executable, "-m", "celery", "-A", "worker.grading_tasks.main", "worker", "-Q", GRADING_QUEUE)
    with log.open("ab") as output:
        process = psutil.Popen(
            [*command, "--concurrency", str(concurrency), *QUIET],
            env=os.environ | _environment(settings),
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "ready." in log.read_text(), what="the grading worker is ready")
        yield process
    finally:
        family = process.children(recursive=True) if process.is_running() else []
        for victim in (process, *family):
            _kill(victim)
        process.wait(10)


def _environment(settings: Settings) -> dict[str, str]:
    return {
        "PODIUM_DATABASE_URL": settings.database_url,
        "PODIUM_BROKER_URL": settings.broker_url.get_secret_value(),
        "PODIUM_STORE_URL": settings.store_url,
    }


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
