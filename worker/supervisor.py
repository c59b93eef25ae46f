"""One attempt at one job: `python -m worker.supervisor JOB_ID`.

Claim the lease, lay out the run directory, start the trainer, ship what it writes, and name the outcome. A heartbeat
keeps the lease; when it is lost, the trainer is killed and nothing more is written.

SIGTERM means that this machine is going away: the trainer saves, and the job goes back to the queue at once.
"""

import signal
import socket
import sys
import threading
import time
from types import FrameType

import structlog
from sqlalchemy.exc import OperationalError

from core.db import leases
from core.db.leases import Lease, LeaseLost
from core.db.session import Sessions, make_sessions
from core.errors import ServiceError
from core.ids import JobId
from core.logging import configure_logging
from core.settings import Settings, get_settings
from core.status import StatusReason
from core.storage.connect import open_store
from core.storage.store import ObjectStore, StoreUnavailable
from worker import inputs
from worker.endings import Ending, name_ending, record
from worker.heartbeat import Heartbeat
from worker.parent import die_with_parent
from worker.run_directory import FailureDetail, RunDirectory
from worker.shipper import Shipper
from worker.trainer_process import TrainerProcess

log = structlog.get_logger()

DRAIN_PATIENCE_S = 900.0
"""How long a supervisor waits for an absent store or ledger once the trainer has ended."""


def supervise(job_id: JobId, sessions: Sessions, store: ObjectStore, settings: Settings) -> None:
    """Run the job if it is free. Returns when this attempt is over, whatever became of it."""
    with sessions.begin() as session:
        lease = leases.claim(
            session, job_id, owner=socket.gethostname(), ttl_s=settings.lease_ttl_s, max_failures=settings.max_failures
        )
    if lease is None:
        log.info("job_not_claimed", job_id=job_id)
        return
    with structlog.contextvars.bound_contextvars(job_id=job_id, attempt=lease.attempt):
        try:
            Attempt(sessions, store, lease, settings).run()
        except LeaseLost:
            log.warning("attempt_fenced")


class Attempt:
    def __init__(self, sessions: Sessions, store: ObjectStore, lease: Lease, settings: Settings) -> None:
        self._sessions = sessions
        self._store = store
        self._lease = lease
        self._settings = settings
        self._run = RunDirectory(settings.runs_dir / lease.job_id / f"a{lease.attempt:04d}")
        self._trainer = TrainerProcess(self._run, settings)
        self._preempted = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_preemption)
        signal.signal(signal.SIGINT, self._on_preemption)
        heartbeat = Heartbeat(
            self._sessions, self._lease, self._settings, on_lost=self._trainer.kill, on_cancel=self._trainer.stop
        )
        with heartbeat:
            try:
                ending = self._prepare() or self._train(heartbeat)
            finally:
                self._trainer.clean_up()
            if heartbeat.lost.is_set():
                raise LeaseLost
            self._record(ending, heartbeat)

    def _on_preemption(self, _signal: int, _frame: FrameType | None) -> None:
        """Runs in the main thread between any two lines, so it must not wait for a lock that the thread may hold."""
        self._preempted = True
        threading.Thread(target=self._trainer.stop, name="trainer-stop", daemon=True).start()

    def _prepare(self) -> Ending | None:
        """The ending, if it ends here already: inputs that are gone or cannot be reached."""
        try:
            inputs.prepare(self._sessions, self._store, self._lease, self._settings, self._run)
        except ServiceError as error:
            reason = StatusReason.STORE_FAILED if error.retryable else StatusReason.DATA_UNUSABLE
            failure = FailureDetail(
                reason=reason, code=error.code, message=error.message, fix=error.fix, retryable=error.retryable
            )
            return Ending.failed(failure)
        return None

    def _train(self, heartbeat: Heartbeat) -> Ending:
        shipper = Shipper(self._sessions, self._store, self._lease, self._run)
        try:
            self._trainer.start()
            while (code := self._trainer.wait(self._settings.supervisor_poll_s)) is None:
                shipper.ship()
            log.info("trainer_ended", exit_code=code)
            self._drain(shipper, heartbeat)
        finally:
            shipper.close()
        return name_ending(self._run, code, preempted=self._preempted, cancelled=heartbeat.cancelled.is_set())

    def _drain(self, shipper: Shipper, heartbeat: Heartbeat) -> None:
        """Ship the rest, for as long as the lease stands and patience lasts; a machine that goes away has little."""
        deadline = time.monotonic() + (self._settings.stop_grace_s if self._preempted else DRAIN_PATIENCE_S)
        shipper.ship()
        while not shipper.is_drained() and not heartbeat.lost.is_set() and time.monotonic() < deadline:
            time.sleep(self._settings.supervisor_poll_s / 5)
            shipper.ship()

    def _record(self, ending: Ending, heartbeat: Heartbeat) -> None:
        """Write the ending; a store or ledger that is away is waited for while the lease stands."""
        deadline = time.monotonic() + DRAIN_PATIENCE_S
        while True:
            try:
                record(ending, self._sessions, self._store, self._lease, self._run, self._settings)
            except (OperationalError, StoreUnavailable) as error:
                log.warning("ending_not_recorded", error=str(error).splitlines()[0])
                if heartbeat.lost.wait(self._settings.supervisor_poll_s) or time.monotonic() > deadline:
                    raise LeaseLost from error
            else:
                return


def main() -> None:
    die_with_parent(signal.SIGTERM)
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)
    sessions = make_sessions(settings.database_url, pool_size=3)
    supervise(JobId(sys.argv[1]), sessions, open_store(settings), settings)


if __name__ == "__main__":
    main()
