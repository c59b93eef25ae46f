"""How an attempt ended, and what that means for the job. The one place where an exit becomes a status."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import structlog
from sqlalchemy import select

from core.db import leases
from core.db.leases import Lease
from core.db.models import Job
from core.db.session import Sessions
from core.settings import Settings
from core.status import JobStatus, StatusReason
from core.storage.store import ObjectStore
from worker import publisher
from worker.run_directory import FailureDetail, RunDirectory, Summary, tail

log = structlog.get_logger()


class EndingKind(StrEnum):
    FINISHED = "finished"
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    kind: EndingKind
    summary: Summary | None = None
    failure: FailureDetail | None = None

    @classmethod
    def failed(cls, failure: FailureDetail) -> Self:
        return cls(EndingKind.FAILED, failure=failure)


def name_ending(run: RunDirectory, exit_code: int, *, preempted: bool, cancelled: bool) -> Ending:
    """What happened, from what the trainer left. A wish to stop explains any exit that is not a finish or failure."""
    outcome = run.read_outcome()
    if outcome is not None and outcome.kind == "finished":
        return Ending(EndingKind.FINISHED, summary=outcome.summary)
    if cancelled:
        return Ending(EndingKind.CANCELLED)
    if preempted:
        return Ending(EndingKind.PREEMPTED)
    if outcome is not None and outcome.failure is not None:
        return Ending.failed(outcome.failure)
    return Ending.failed(_crash(run, exit_code))


def record(
    ending: Ending, sessions: Sessions, store: ObjectStore, lease: Lease, run: RunDirectory, settings: Settings
) -> None:
    """Write the ending into the ledger, under the lease."""
    log.info("attempt_ended", kind=ending.kind, reason=ending.failure.reason if ending.failure else None)
    match ending.kind:
        case EndingKind.FINISHED:
            assert ending.summary is not None
            publisher.publish(sessions, store, lease, run, ending.summary, settings)
        case EndingKind.CANCELLED:
            _record_cancelled(sessions, lease)
        case EndingKind.PREEMPTED:
            _record_preempted(sessions, lease, settings)
        case EndingKind.FAILED:
            assert ending.failure is not None
            _record_failed(sessions, lease, ending.failure, settings)


def _record_cancelled(sessions: Sessions, lease: Lease) -> None:
    with sessions.begin() as session:
        durable = session.scalar(select(Job.durable_step).where(Job.id == lease.job_id))
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
        durable, preemptions = session.execute(
            select(Job.durable_step, Job.preemptions).where(Job.id == lease.job_id)
        ).one()
        if preemptions + 1 >= settings.max_preemptions:
            error = {
                "code": "preempted_too_often",
                "message": f"The job was preempted {preemptions + 1} times; the limit is {settings.max_preemptions}.",
                "param": None,
                "fix": "Raise PODIUM_MAX_PREEMPTIONS, or run the job on machines that stay.",
            }
            leases.finish(
                session,
                lease,
                JobStatus.FAILED,
                message=error["message"] or "",
                reason=StatusReason.PREEMPTED,
                error=error,
                preemptions=Job.preemptions + 1,
            )
            return
        message = f"Its worker is going away; step {durable or 0} is safe, and the next worker goes on from there."
        leases.release(session, lease, reason=StatusReason.PREEMPTED, message=message, preemptions=Job.preemptions + 1)


def _record_failed(sessions: Sessions, lease: Lease, failure: FailureDetail, settings: Settings) -> None:
    with sessions.begin() as session:
        leases.hold(session, lease)
        failures = (session.scalar(select(Job.failures).where(Job.id == lease.job_id)) or 0) + 1
        if failure.retryable and failures < settings.max_failures:
            message = f"Failure {failures} of {settings.max_failures}: {failure.message}"
            leases.release(session, lease, reason=failure.reason, message=message, failures=Job.failures + 1)
            return
        error = {"code": failure.code, "message": failure.message, "param": None, "fix": failure.fix}
        leases.finish(
            session,
            lease,
            JobStatus.FAILED,
            message=failure.message,
            reason=failure.reason,
            error=error,
            failures=Job.failures + 1,
        )


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
