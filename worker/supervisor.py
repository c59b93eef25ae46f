"""One attempt at one job: a process that a Celery task forks (`worker.supervisor_process`), or that a person starts by
`python -m worker.supervisor JOB_ID`.

Claim the lease, lay out the run directory, start the trainer, ship what it writes, and name the outcome. A heartbeat
keeps the lease; when it is lost, the trainer is killed and nothing more is written.

SIGTERM, or a notice of the machine's cloud, means that this machine is going away: the trainer saves if there is time
for that, and the job goes back to the queue at once. A pause gives it the time that it needs. A trainer that hangs is
ended by the watchdog.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import structlog

from core.activity import Activity
from core.db import jobs, leases
from core.db.leases import Lease, LeaseLost
from core.db.session import LEDGER_AWAY, Sessions, make_sessions
from core.errors import ServiceError
from core.failpoints import failpoint
from core.ids import JobId
from core.logging import configure_logging
from core.settings import Settings, get_settings
from core.storage.connect import open_store
from core.storage.store import ObjectStore, StoreFull, StoreUnavailable
from worker import inputs, leftovers, preemption, stop_signals
from worker.endings import Ending, EndingKind, Wished, name_ending, record
from worker.files import tail
from worker.grading import orphans
from worker.heartbeat import Heartbeat
from worker.parent import die_with_parent
from worker.run_directory import LAST_UPLOAD_S, RunDirectory, RunUnreadable
from worker.shipper import Shipper
from worker.trainer_process import TrainerProcess
from worker.watchdog import Hang, Watchdog

log = structlog.get_logger()

PATIENCE_S = 900.0
"""How long an attempt waits for a store that is away. For the ledger it waits as long as its lease stands."""
FENCED_EXIT_S = 5.0
"""After this long a fenced supervisor that hangs in a call (a silent server) ends by force."""
FENCED_EXIT_CODE = 76
STACKS_S = 2.0
"""For a hung trainer to write down where it waits."""
TRAINER = "trainer"


def supervise(job_id: JobId, sessions: Sessions, store: ObjectStore, settings: Settings) -> None:
    """Run the job if it is free. Returns when this attempt is over, whatever became of it.

    Stop signals are blocked from before the claim: between it and somebody who listens, one would leave a lease behind.
    """
    source = preemption.make_source(settings)
    if preemption.is_noticed(source):
        _leave_for_others(job_id, sessions, source, settings)
        return
    with stop_signals.blocked():
        claimed_at = time.monotonic()
        lease = _claim(job_id, sessions, settings)
        if lease is None:
            log.info("job_not_claimed", job_id=job_id)
            return
        failpoint("claim.committed")
        structlog.contextvars.bind_contextvars(job_id=job_id, attempt=lease.attempt)
        try:
            Attempt(sessions, store, lease, settings, source, claimed_at=claimed_at).run()
        except LeaseLost:
            log.warning("attempt_fenced")


def _leave_for_others(job_id: JobId, sessions: Sessions, source: preemption.Source | None, settings: Settings) -> None:
    """Have other workers told of the job at once, and keep this slot busy: it would only take the next hint."""
    with suppress(*LEDGER_AWAY), sessions.begin() as session:
        jobs.forget_hint(session, job_id)
    log.info("job_left_for_others", job_id=job_id)
    while preemption.is_noticed(source):
        time.sleep(settings.preemption_poll_s)


def _claim(job_id: JobId, sessions: Sessions, settings: Settings) -> Lease | None:
    """None also where the ledger is away: the dispatcher tells of the job again."""
    try:
        with sessions.begin() as session:
            return leases.claim(
                session,
                job_id,
                owner=socket.gethostname(),
                ttl_s=settings.lease_ttl_s,
                max_failures=settings.max_failures,
                gpus=settings.gpus,
            )
    except LEDGER_AWAY as error:
        log.warning("ledger_unreachable", error=str(error).splitlines()[0])
        return None


@dataclass(slots=True)
class Doing:
    """What the supervisor itself is at; while the trainer runs, that one's pulse says more."""

    phase: str
    since: float = field(default_factory=time.monotonic)
    waiting_for: str | None = None


class Attempt:
    def __init__(
        self,
        sessions: Sessions,
        store: ObjectStore,
        lease: Lease,
        settings: Settings,
        source: preemption.Source | None,
        *,
        claimed_at: float,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._lease = lease
        self._settings = settings
        self._run = RunDirectory(settings.runs_dir / lease.job_id / f"a{lease.attempt:04d}")
        self._trainer = TrainerProcess(self._run, settings)
        self._watchdog = Watchdog(settings)
        self._hang: Hang | None = None
        self._doing = Doing("fetching_inputs")
        self._heartbeat = Heartbeat(
            sessions,
            lease,
            settings,
            claimed_at=claimed_at,
            on_lost=self._fence,
            on_cancel=self._cancel,
            on_pause=self._pause,
            activity=self._activity,
        )
        self._notices = preemption.PreemptionWatch(source, settings, on_notice=self._preempt)
        self._forced_exit = threading.Timer(FENCED_EXIT_S, os._exit, [FENCED_EXIT_CODE])
        self._forced_exit.daemon = True
        self._preempted_until: float | None = None
        """When this machine goes away, if it does."""
        self._cancelled_until: float | None = None
        self._prepared = False

    def run(self) -> None:
        """Raises `LeaseLost` when the job is somebody else's now."""
        try:
            with stop_signals.listening(self._preempt), self._notices, self._heartbeat:
                ending = self._work()
                self._record(ending)
        finally:
            self._forced_exit.cancel()
            self._run.clear()

    def _work(self) -> Ending:
        try:
            leftovers.sweep(self._settings.runs_dir)
            orphans.sweep()
            self._patiently(self._prepare)
            return self._train()
        except ServiceError as error:
            log.warning("attempt_refused", code=error.code, error=error.message)
            return self._wished.ending or Ending.refused(error)
        except OSError as error:
            log.warning("worker_unfit", error=str(error))
            return Ending.unfit(error)
        finally:
            self._trainer.clean_up()

    def _prepare(self) -> None:
        inputs.prepare(self._sessions, self._store, self._lease, self._settings, self._run)
        leftovers.hold(self._run.path)
        self._prepared = True

    def _train(self) -> Ending:
        shipper = Shipper(self._sessions, self._store, self._lease, self._run)
        try:
            self._watchdog.start()
            self._trainer.start()
            self._doing = Doing(TRAINER)
            while (code := self._trainer.wait(self._settings.supervisor_poll_s)) is None:
                shipper.ship()
                self._doing.waiting_for = "store" if shipper.store_is_away else None
                self._look_for_hang()
            log.info("trainer_ended", exit_code=code)
            self._doing = Doing("uploading")
            self._drain(shipper)
            self._patiently(shipper.close_audit)
        finally:
            shipper.close()
        if self._hang is not None and self._wished.ending is None:
            return Ending.failed(self._hang.failure(tail(self._run.log)))
        return name_ending(self._run, code, self._wished)

    def _look_for_hang(self) -> None:
        """A trainer that was told to go has its own time limit; one that pauses is watched on."""
        if self._hang is not None or self._leaves_until:
            return
        self._hang = self._watchdog.look(self._run.read_pulse())
        if self._hang is not None:
            log.warning("trainer_hung", phase=self._hang.pulse.phase, stuck_s=round(self._hang.stuck_s, 1))
            self._trainer.show_stacks()
            self._trainer.wait(STACKS_S)
            self._trainer.kill()

    def _drain(self, shipper: Shipper) -> None:
        """Ship the rest, for as long as the lease stands and patience lasts."""
        ended_at = time.monotonic()
        shipper.ship()
        while not shipper.is_drained() and not self._is_out_of_patience(ended_at):
            if self._heartbeat.lost.wait(self._settings.supervisor_poll_s / 5):
                raise LeaseLost
            shipper.ship()

    def _record(self, ending: Ending) -> None:
        self._doing = Doing("publishing")
        try:
            self._patiently(lambda: self._write(ending))
        except ServiceError as error:
            log.warning("run_not_published", code=error.code, error=error.message)
            instead = self._wished.ending or Ending.refused(error)
            self._patiently(lambda: self._write(instead))

    def _write(self, ending: Ending) -> None:
        record(ending, self._sessions, self._store, self._lease, self._run, self._settings)

    def _patiently(self, do: Callable[[], None]) -> None:
        """Do it, and again while the ledger or the store is away. Raises `StoreUnavailable` when patience ends."""
        began_at = time.monotonic()
        while not self._heartbeat.lost.is_set():
            self._doing.waiting_for = None
            try:
                return do()
            except LEDGER_AWAY as error:
                self._doing.waiting_for = "ledger"
                log.warning("ledger_unreachable", error=str(error).splitlines()[0])
            except StoreFull:
                raise
            except StoreUnavailable as error:
                self._doing.waiting_for = "store"
                log.warning("store_unreachable", error=error.message)
                if self._is_out_of_patience(began_at):
                    raise
            self._heartbeat.lost.wait(self._settings.supervisor_poll_s)
        raise LeaseLost

    def _is_out_of_patience(self, waiting_since: float) -> bool:
        """Who was told to go has the grace, and a moment for a last upload; who was not may wait for a long outage."""
        if not self._leaves_until:
            return time.monotonic() > waiting_since + PATIENCE_S
        return time.monotonic() > max(min(self._leaves_until), waiting_since + LAST_UPLOAD_S)

    @property
    def _leaves_until(self) -> list[float]:
        """The moments by which this attempt was told to be gone."""
        return [until for until in (self._preempted_until, self._cancelled_until) if until is not None]

    @property
    def _wished(self) -> Wished:
        return Wished(
            cancelled=self._heartbeat.cancelled.is_set(),
            paused=self._heartbeat.paused.is_set(),
            preempted=self._preempted_until is not None,
        )

    def _activity(self) -> Activity | None:
        """Asked by the heartbeat's thread: what the row says of this run."""
        doing = self._doing
        if doing.phase != TRAINER:
            return Activity(phase=doing.phase, for_s=time.monotonic() - doing.since, waiting_for=doing.waiting_for)
        try:
            pulse = self._watchdog.current(self._run.read_pulse())
        except RunUnreadable:
            return None
        return Activity(
            phase=pulse.phase,
            for_s=time.monotonic() - pulse.since,
            step=pulse.step + 1,
            longest_s=pulse.longest_s,
            deadline_s=self._watchdog.deadline_s(pulse),
            waiting_for=doing.waiting_for,
        )

    def _fence(self) -> None:
        """Called by the heartbeat's threads: the lease is lost, or will be before it can be renewed."""
        self._trainer.kill()
        self._forced_exit.start()

    def _cancel(self) -> None:
        """Called once by the heartbeat's thread."""
        self._cancelled_until = time.monotonic() + self._settings.stop_grace_s
        self._trainer.stop()
        self._leave_unprepared(EndingKind.CANCELLED)

    def _pause(self) -> None:
        """Called once by the heartbeat's thread."""
        self._trainer.pause()
        self._leave_unprepared(EndingKind.PAUSED)

    def _preempt(self, notice: preemption.Notice | None = None) -> None:
        """Called by the thread that hears signals, or the one that asks the cloud: this machine is going away.

        Stop the trainer; where there is none yet, give the job back at once. A signal that follows a notice hurries.
        """
        time_left_s = 0.0 if notice is None else notice.time_left_s - LAST_UPLOAD_S
        until = time.monotonic() + max(time_left_s, self._settings.stop_grace_s)
        known_until, self._preempted_until = self._preempted_until, min(until, self._preempted_until or until)
        if known_until is None or until < known_until:
            self._trainer.stop(time_left_s)
        if known_until is None:
            self._leave_unprepared(EndingKind.PREEMPTED)

    def _leave_unprepared(self, kind: EndingKind) -> None:
        """A long download has nothing to save: end the attempt. What the main thread does then is fenced, and ends."""
        if self._prepared:
            return
        try:
            self._patiently(lambda: self._write(Ending(kind)))
        except LeaseLost:
            log.info("lease_lost_before_leaving")


def run(job_id: JobId) -> NoReturn:
    """All that this process does, and its end."""
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)
    sessions = make_sessions(settings.database_url, pool_size=3)
    supervise(job_id, sessions, open_store(settings), settings)
    logging.shutdown()
    os._exit(0)  # at once: the pools of an upload that nobody needs any more would be waited for


if __name__ == "__main__":
    die_with_parent(signal.SIGTERM)
    run(JobId(sys.argv[1]))
