"""One attempt at one job: `python -m worker.supervisor JOB_ID`.

Claim the lease, lay out the run directory, start the trainer, ship what it writes, and name the outcome. A heartbeat
keeps the lease; when it is lost, the trainer is killed and nothing more is written.

SIGTERM means that this machine is going away: the trainer saves, and the job goes back to the queue at once.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import structlog

from core.db import leases
from core.db.leases import Lease, LeaseLost
from core.db.session import LEDGER_AWAY, Sessions, make_sessions
from core.errors import ServiceError
from core.failpoints import failpoint
from core.ids import JobId
from core.logging import configure_logging
from core.settings import Settings, get_settings
from core.storage.connect import open_store
from core.storage.store import ObjectStore, StoreUnavailable
from worker import inputs, stop_signals
from worker.endings import Ending, EndingKind, name_ending, record
from worker.heartbeat import Heartbeat
from worker.parent import die_with_parent
from worker.run_directory import RunDirectory
from worker.shipper import Shipper
from worker.trainer_process import TrainerProcess

log = structlog.get_logger()

PATIENCE_S = 900.0
"""How long an attempt waits for a store that is away. For the ledger it waits as long as its lease stands."""
LAST_UPLOAD_S = 5.0
"""What a machine that goes away still grants to the last checkpoint's upload, once the trainer has ended."""
FENCED_EXIT_S = 5.0
"""After this long a fenced supervisor that hangs in a call (a silent server) ends by force."""
FENCED_EXIT_CODE = 76


def supervise(job_id: JobId, sessions: Sessions, store: ObjectStore, settings: Settings) -> None:
    """Run the job if it is free. Returns when this attempt is over, whatever became of it.

    Stop signals are blocked from before the claim: between it and somebody who listens, one would leave a lease behind.
    """
    with stop_signals.blocked():
        claimed_at = time.monotonic()
        with sessions.begin() as session:
            lease = leases.claim(
                session,
                job_id,
                owner=socket.gethostname(),
                ttl_s=settings.lease_ttl_s,
                max_failures=settings.max_failures,
            )
        if lease is None:
            log.info("job_not_claimed", job_id=job_id)
            return
        failpoint("claim.committed")
        structlog.contextvars.bind_contextvars(job_id=job_id, attempt=lease.attempt)
        try:
            Attempt(sessions, store, lease, settings, claimed_at=claimed_at).run()
        except LeaseLost:
            log.warning("attempt_fenced")


class Attempt:
    def __init__(
        self, sessions: Sessions, store: ObjectStore, lease: Lease, settings: Settings, *, claimed_at: float
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._lease = lease
        self._settings = settings
        self._run = RunDirectory(settings.runs_dir / lease.job_id / f"a{lease.attempt:04d}")
        self._trainer = TrainerProcess(self._run, settings)
        self._heartbeat = Heartbeat(
            sessions, lease, settings, claimed_at=claimed_at, on_lost=self._fence, on_cancel=self._cancel
        )
        self._forced_exit = threading.Timer(FENCED_EXIT_S, os._exit, [FENCED_EXIT_CODE])
        self._forced_exit.daemon = True
        self._preempted_at: float | None = None
        self._cancelled_at: float | None = None
        self._prepared = False

    def run(self) -> None:
        """Raises `LeaseLost` when the job is somebody else's now."""
        try:
            with stop_signals.listening(self._preempt), self._heartbeat:
                ending = self._work()
                self._record(ending)
        finally:
            self._forced_exit.cancel()
            self._run.clear()

    def _work(self) -> Ending:
        try:
            self._patiently(self._prepare)
            return self._train()
        except ServiceError as error:
            log.warning("attempt_refused", code=error.code, error=error.message)
            return self._wished() or Ending.refused(error)
        except OSError as error:
            log.warning("worker_unfit", error=str(error))
            return Ending.unfit(error)
        finally:
            self._trainer.clean_up()

    def _prepare(self) -> None:
        inputs.prepare(self._sessions, self._store, self._lease, self._settings, self._run)
        self._prepared = True

    def _train(self) -> Ending:
        shipper = Shipper(self._sessions, self._store, self._lease, self._run)
        try:
            self._trainer.start()
            while (code := self._trainer.wait(self._settings.supervisor_poll_s)) is None:
                shipper.ship()
            log.info("trainer_ended", exit_code=code)
            self._drain(shipper)
        finally:
            shipper.close()
        preempted, cancelled = self._preempted_at is not None, self._heartbeat.cancelled.is_set()
        return name_ending(self._run, code, preempted=preempted, cancelled=cancelled)

    def _drain(self, shipper: Shipper) -> None:
        """Ship the rest, for as long as the lease stands and patience lasts."""
        ended_at = time.monotonic()
        shipper.ship()
        while not shipper.is_drained() and not self._is_out_of_patience(ended_at):
            if self._heartbeat.lost.wait(self._settings.supervisor_poll_s / 5):
                raise LeaseLost
            shipper.ship()

    def _record(self, ending: Ending) -> None:
        try:
            self._patiently(lambda: self._write(ending))
        except ServiceError as error:
            log.warning("run_not_published", code=error.code, error=error.message)
            instead = self._wished() or Ending.refused(error)
            self._patiently(lambda: self._write(instead))

    def _write(self, ending: Ending) -> None:
        record(ending, self._sessions, self._store, self._lease, self._run, self._settings)

    def _patiently(self, do: Callable[[], None]) -> None:
        """Do it, and again while the ledger or the store is away. Raises `StoreUnavailable` when patience ends."""
        began_at = time.monotonic()
        while not self._heartbeat.lost.is_set():
            try:
                return do()
            except LEDGER_AWAY as error:
                log.warning("ledger_unreachable", error=str(error).splitlines()[0])
            except StoreUnavailable as error:
                log.warning("store_unreachable", error=error.message)
                if self._is_out_of_patience(began_at):
                    raise
            self._heartbeat.lost.wait(self._settings.supervisor_poll_s)
        raise LeaseLost

    def _is_out_of_patience(self, waiting_since: float) -> bool:
        """Who was told to go has the grace, and a moment for a last upload; who was not may wait for a long outage."""
        told_at = [at for at in (self._preempted_at, self._cancelled_at) if at is not None]
        if not told_at:
            return time.monotonic() > waiting_since + PATIENCE_S
        return time.monotonic() > max(min(told_at) + self._settings.stop_grace_s, waiting_since + LAST_UPLOAD_S)

    def _wished(self) -> Ending | None:
        if self._heartbeat.cancelled.is_set():
            return Ending(EndingKind.CANCELLED)
        return Ending(EndingKind.PREEMPTED) if self._preempted_at is not None else None

    def _fence(self) -> None:
        """Called by the heartbeat's threads: the lease is lost, or will be before it can be renewed."""
        self._trainer.kill()
        self._forced_exit.start()

    def _cancel(self) -> None:
        """Called once by the heartbeat's thread."""
        self._cancelled_at = time.monotonic()
        self._trainer.stop()

    def _preempt(self) -> None:
        """Called by the thread that hears signals: this machine is going away.

        Stop the trainer. Where there is none yet, give the job back at once: a long download has nothing to save.
        Whatever the main thread does then is fenced, and ends it.
        """
        if self._preempted_at is not None:
            return
        self._preempted_at = time.monotonic()
        self._trainer.stop()
        if not self._prepared:
            try:
                self._patiently(lambda: self._write(Ending(EndingKind.PREEMPTED)))
            except LeaseLost:
                log.info("lease_lost_before_leaving")


def main() -> None:
    die_with_parent(signal.SIGTERM)
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)
    sessions = make_sessions(settings.database_url, pool_size=3)
    supervise(JobId(sys.argv[1]), sessions, open_store(settings), settings)
    logging.shutdown()
    os._exit(0)  # at once: the pools of an upload that nobody needs any more would be waited for


if __name__ == "__main__":
    main()
