"""The exporter: `python -m worker.exports.main`. Any number may run; one is enough.

It takes exports that are due, and starts a process for each (`worker.exports.run`): a client that crashes, leaks or
hangs is none of the others' business, and never a trainer's. It is the only part of Podium that needs keys and
addresses of targets.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import structlog

from core.db import exports
from core.db.exports import Claim
from core.db.session import LEDGER_AWAY, Sessions, make_sessions
from core.failpoints import failpoint
from core.logging import configure_logging
from core.settings import CHECKOUT, Settings, get_settings
from worker import stop_signals, temporary
from worker.exports.environment import export_environment
from worker.exports.run import lease_s, record_failure
from worker.exports.target import ExportBroke
from worker.parent import parent_environment

log = structlog.get_logger()

MODULE = "worker.exports.run"
MOST_AT_ONCE = 16
"""A client takes 100 to 250 MB; a job that runs has one process for each of its targets."""
STOP_GRACE_S = 10.0


class Exporter:
    """For one thread: a child dies with the one that started it."""

    def __init__(self, sessions: Sessions, settings: Settings) -> None:
        self._sessions = sessions
        self._settings = settings
        self._children: dict[Claim, subprocess.Popen[bytes]] = {}

    def tend(self) -> None:
        """Look after those that have ended, and start what is due. Raises errors of the ledger."""
        for claim, child in list(self._children.items()):
            if (code := child.poll()) is not None:
                self._bury(claim, code)
        while len(self._children) < MOST_AT_ONCE and (due := self._claim()) is not None:
            failpoint("export.claimed")
            self._children[due] = self._start(due)

    def stop(self) -> None:
        """Let each end its call and leave its run; whoever does not is killed, and goes on after its lease."""
        for child in self._children.values():
            child.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        for claim, child in self._children.items():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            log.info("export_process_ended", job_id=claim.job_id, target=claim.target, exit_code=child.returncode)

    def _claim(self) -> Claim | None:
        with self._sessions.begin() as session:
            return exports.claim(session, ttl_s=lease_s(self._settings))

    def _start(self, claim: Claim) -> subprocess.Popen[bytes]:
        """What it prints is the clients' chatter; what it logs is ours."""
        folder = _folder(claim)
        folder.mkdir(exist_ok=True)
        environment = export_environment(os.environ, self._settings, claim.target, temporary=folder)
        child = subprocess.Popen(
            [sys.executable, "-m", MODULE, claim.job_id, claim.target, str(claim.attempt)],
            cwd=CHECKOUT,
            env=environment | parent_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        log.info("export_process_started", job_id=claim.job_id, target=claim.target, pid=child.pid)
        return child

    def _bury(self, claim: Claim, code: int) -> None:
        """A process that ends by itself has written down why; of another one it is done here."""
        shutil.rmtree(_folder(claim), ignore_errors=True)
        log.info("export_process_ended", job_id=claim.job_id, target=claim.target, exit_code=code)
        if code != 0:
            error = ExportBroke("the process crashed, or a call of its client took too long.")
            record_failure(claim, error, self._sessions, self._settings)
        del self._children[claim]


def main() -> None:
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)
    temporary.sweep()
    temporary.hold_folder()
    stop = stop_signals.remembered()
    exporter = Exporter(make_sessions(settings.database_url, pool_size=2), settings)
    log.info("exporter_started", targets=[target.value for target in settings.integrations])
    while not stop.wait(settings.export_poll_s):
        try:
            exporter.tend()
        except LEDGER_AWAY as error:
            log.warning("ledger_unreachable", error=str(error).splitlines()[0])
    exporter.stop()
    log.info("exporter_stopped")


def _folder(claim: Claim) -> Path:
    return Path(tempfile.gettempdir()) / f"{claim.job_id}-{claim.target}-{claim.attempt}"


if __name__ == "__main__":
    main()
