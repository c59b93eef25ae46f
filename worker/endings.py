"""How an attempt ended, and what that means for the job. The one place where an exit becomes a status."""

import shutil
import socket
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import structlog

from core.db import jobs, leases
from core.db.leases import Lease
from core.db.models import Job
from core.db.session import Sessions
from core.errors import FULL_DISK_ERRNOS, InvalidReward, ServiceError
from core.settings import Settings
from core.signal_report import SignalReport
from core.status import JobKind, JobStatus, StatusReason
from core.storage.store import ObjectStore, StoreError, StoreFull, StoreMisconfigured, StoreUnavailable
from worker import publisher
from worker.files import tail
from worker.inputs import ModelGone
from worker.run_directory import FailureDetail, RunDirectory, RunUnreadable, Summary

log = structlog.get_logger()

OUTAGES = frozenset({StatusReason.STORE_FAILED, StatusReason.HUB_FAILED})
"""What is away takes nothing from a job but time, where another try can help."""
NO_ROOM_BYTES = 1024 * 1024
"""With less than this free, a trainer could not even say that the disk is full."""


class EndingKind(StrEnum):
    FINISHED = "finished"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    PAUSED = "paused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    kind: EndingKind
    summary: Summary | None = None
    failure: FailureDetail | None = None
    report: SignalReport | None = None
    """Of a finished signal probe, in place of the summary."""

    @classmethod
    def failed(cls, failure: FailureDetail) -> Self:
        return cls(EndingKind.FAILED, failure=failure)

    @classmethod
    def refused(cls, error: ServiceError) -> Self:
        """It could not begin, or not be published: inputs, store or run directory said no."""
        if isinstance(error, StoreFull):
            return cls.failed(disk_full(error.message))
        return cls.failed(
            FailureDetail(
                reason=_reason(error),
                code=error.code,
                message=error.message,
                fix=error.fix,
                retryable=error.retryable,
                pauses=isinstance(error, ModelGone) or (isinstance(error, StoreError) and not error.retryable),
            )
        )

    @classmethod
    def unfit(cls, error: OSError) -> Self:
        """This machine cannot run it; another one may, unless it is only that the disk is full."""
        if error.errno in FULL_DISK_ERRNOS:
            return cls.failed(disk_full(f"The disk of worker {socket.gethostname()} is full: {error}."))
        return cls.failed(
            FailureDetail(
                reason=StatusReason.WORKER_UNFIT,
                code="worker_unfit",
                message=f"The worker {socket.gethostname()} cannot run the job: {error}.",
                fix="Look at the worker's disk (PODIUM_RUNS_DIR) and at PODIUM_TRAINER_PYTHON.",
                retryable=True,
            )
        )


@dataclass(frozen=True, slots=True)
class Wished:
    """Why the trainer was told to stop, if it was; more than one may be true."""

    cancelled: bool = False
    paused: bool = False
    preempted: bool = False

    @property
    def ending(self) -> Ending | None:
        """A cancel is for good, a pause is a person's word, and a preemption only moves the job."""
        if self.cancelled:
            return Ending(EndingKind.CANCELLED)
        if self.paused:
            return Ending(EndingKind.PAUSED)
        return Ending(EndingKind.PREEMPTED) if self.preempted else None


def name_ending(run: RunDirectory, exit_code: int, wished: Wished) -> Ending:
    """What happened, from what the trainer left. A wish to stop explains any exit but a finish.

    A trainer that stopped without our wish was told by the machine: all its processes are, when it shuts down.
    Raises `RunUnreadable`.
    """
    outcome = run.read_outcome()
    if outcome is not None and outcome.kind == "finished":
        return Ending(EndingKind.FINISHED, summary=outcome.summary, report=outcome.report)
    if wished.ending is not None:
        return wished.ending
    if outcome is not None and outcome.kind == "stopped":
        return Ending(EndingKind.PREEMPTED)
    if outcome is not None and outcome.failure is not None:
        return Ending.failed(outcome.failure)
    if outcome is None and shutil.disk_usage(run.path).free < NO_ROOM_BYTES:
        return Ending.failed(disk_full("The trainer ended without a word, and its disk is full."))
    return Ending.failed(_crash(run, exit_code))


def record(
    ending: Ending, sessions: Sessions, store: ObjectStore, lease: Lease, run: RunDirectory, settings: Settings
) -> None:
    """Write the ending into the ledger, under the lease. May be repeated.

    Raises `LeaseLost`, and for a finished run the errors of `publisher.publish`.
    """
    log.info("attempt_ended", kind=ending.kind, reason=ending.failure.reason if ending.failure else None)
    match ending.kind:
        case EndingKind.FINISHED if ending.report is not None:
            publisher.publish_report(sessions, lease, ending.report)
        case EndingKind.FINISHED:
            assert ending.summary is not None
            publisher.publish(sessions, store, lease, run, ending.summary, settings)
        case EndingKind.CANCELLED:
            _record_cancelled(sessions, lease)
        case EndingKind.PREEMPTED:
            _record_preempted(sessions, lease, settings)
        case EndingKind.PAUSED:
            _record_paused(sessions, lease)
        case EndingKind.FAILED:
            assert ending.failure is not None
            _record_failed(sessions, lease, ending.failure, settings)


def _record_cancelled(sessions: Sessions, lease: Lease) -> None:
    with sessions.begin() as session:
        durable = session.get_one(Job, lease.job_id, populate_existing=True).durable_step
        kept = f"Step {durable} is durable and can be downloaded." if durable else "No checkpoint had been made."
        leases.finish(
            session,
            lease,
            JobStatus.CANCELLED,
            message=f"The job was cancelled. {kept}",
            reason=StatusReason.USER_CANCELLED,
        )


def _record_preempted(sessions: Sessions, lease: Lease, settings: Settings) -> None:
    with sessions.begin() as session:
        leases.hold(session, lease)
        job = session.get_one(Job, lease.job_id, populate_existing=True)
        preemptions = job.preemptions + 1
        if preemptions < settings.max_preemptions:
            message = f"Its worker is going away. {jobs.what_is_safe(job)}"
            values = {"preemptions": preemptions, "hinted_at": None, "data": jobs.safety(job)}
            leases.release(session, lease, reason=StatusReason.PREEMPTED, message=message, **values)
            return
        message = f"The job was preempted {preemptions} times, which is the limit."
        fix = "Raise PODIUM_MAX_PREEMPTIONS, or run the job on machines that stay."
        leases.finish(
            session,
            lease,
            JobStatus.FAILED,
            message=message,
            reason=StatusReason.PREEMPTED,
            error={"code": "preempted_too_often", "message": message, "param": None, "fix": fix},
            preemptions=preemptions,
        )


def _record_paused(sessions: Sessions, lease: Lease) -> None:
    with sessions.begin() as session:
        leases.hold(session, lease)
        job = session.get_one(Job, lease.job_id, populate_existing=True)
        if job.pause_requested_at is None:
            message = f"Resumed while the trainer was stopping. {jobs.what_is_safe(job)}"
            leases.release(session, lease, reason=StatusReason.USER_PAUSED, message=message, hinted_at=None)
            return
        message = f"The job is paused. {jobs.what_is_safe(job)}"
        leases.pause(session, lease, reason=StatusReason.USER_PAUSED, message=message, data=jobs.safety(job))


def _record_failed(sessions: Sessions, lease: Lease, failure: FailureDetail, settings: Settings) -> None:
    """Nothing of a signal probe is worth a pause: it fails where a job would wait for somebody to mend something."""
    with sessions.begin() as session:
        leases.hold(session, lease)
        job = session.get_one(Job, lease.job_id, populate_existing=True)
        is_outage = failure.reason in OUTAGES and failure.retryable
        failures = job.failures + (not is_outage)
        is_tried_again = is_outage or (failure.retryable and failures < settings.max_failures)
        if failure.pauses and not is_tried_again and lease.kind is JobKind.GRPO:
            message = f"Paused: {failure.message} {jobs.what_is_safe(job)} {failure.fix or ''}".rstrip()
            leases.pause(session, lease, reason=failure.reason, message=message, data=jobs.safety(job))
            return
        if is_tried_again:
            count = "No failure of the job" if is_outage else f"Failure {failures} of {settings.max_failures}"
            message = f"{count}: {failure.message}"
            leases.release(session, lease, reason=failure.reason, message=message, failures=failures)
            return
        leases.finish(
            session,
            lease,
            JobStatus.FAILED,
            message=failure.message,
            reason=failure.reason,
            error={"code": failure.code, "message": failure.message, "param": None, "fix": failure.fix},
            failures=failures,
        )


def disk_full(message: str) -> FailureDetail:
    return FailureDetail(
        reason=StatusReason.DISK_FULL,
        code="disk_full",
        message=message,
        fix="Make room (PODIUM_RUNS_DIR on the worker, or the object store), then resume the job.",
        pauses=True,
    )


def _reason(error: ServiceError) -> StatusReason:
    match error:
        case StoreUnavailable() | StoreMisconfigured():
            return StatusReason.STORE_FAILED
        case ModelGone():
            return StatusReason.MODEL_UNUSABLE
        case InvalidReward():
            return StatusReason.GRADER_FAILED
        case RunUnreadable():
            return StatusReason.WORKER_UNFIT
        case _:
            return StatusReason.DATA_UNUSABLE


def _crash(run: RunDirectory, exit_code: int) -> FailureDetail:
    """A trainer that ended without a word: the signal or code, and the end of its log."""
    how = f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
    last_lines = tail(run.log)
    return FailureDetail(
        reason=StatusReason.TRAINER_CRASHED,
        code="trainer_crashed",
        message=f"The trainer ended with {how}.\n{last_lines}".rstrip(),
        fix="Signal 9 usually means that the machine ran out of memory; otherwise the log lines say more.",
        retryable=True,
    )
