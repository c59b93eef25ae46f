"""How long things took: takeover of a dead worker's job, clean preemption, work that was done again.

Times of the ledger are the database's clock, ours is the harness's: one machine, one clock.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from bench._chaos.ledger import all_jobs, number_of
from bench._chaos.logs import Broken
from bench._chaos.plan import FaultKind, Submit
from bench._chaos.scene import Done
from core.db import events, progress
from core.db.models import Job, JobAttempt
from core.db.session import Sessions
from core.status import StatusReason

DEADLY = {FaultKind.KILL_SUPERVISOR, FaultKind.KILL_WORKER_TREE, FaultKind.FREEZE_WORKER, FaultKind.FREEZE_SUPERVISOR}
"""The supervisor is gone, or might as well be."""
POLITE = {FaultKind.TERMINATE_WORKER, FaultKind.TERMINATE_SUPERVISOR}
OUTAGES = {
    FaultKind.KILL_POSTGRES: 5.0,
    FaultKind.KILL_VALKEY: 5.0,
    FaultKind.FLUSH_VALKEY: 3.0,
    FaultKind.SILENCE_POSTGRES: 2.0,
    FaultKind.SILENCE_VALKEY: 8.0,
    FaultKind.CUT_CONNECTIONS: 3.0,
}
"""Seconds for which each disturbs claims, beside the time that it lasts: what happens then is told apart."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Seconds, sorted."""

    quiet: list[float]
    """Where nothing else was broken meanwhile: what the goals are about."""
    all: list[float]


@dataclass(frozen=True, slots=True)
class Timings:
    takeovers: Figures
    preemptions: Figures
    redone: list[tuple[int, int]]
    """For each recovery the steps done again, and the job's checkpoint interval. Damaged checkpoints left out."""


def measure(
    sessions: Sessions,
    faults: Sequence[Done],
    broken: Sequence[Broken],
    supervisors: dict[int, str],
    submitted: Sequence[Submit],
) -> Timings:
    deaths = [(fault.at, fault.job_id) for fault in faults if fault.kind in DEADLY and fault.job_id]
    deaths += [(one.at, supervisors[one.pid]) for one in broken if one.action == "kill" and one.pid in supervisors]
    told = [(fault.at, fault.job_id) for fault in faults if fault.kind in POLITE and fault.job_id]
    with sessions() as session:
        return Timings(
            takeovers=_figures([_takeover(session, *death) for death in deaths], faults),
            preemptions=_figures([_preemption(session, *one) for one in told], faults),
            redone=_redone(session, faults, submitted),
        )


@dataclass(frozen=True, slots=True)
class _Took:
    job_id: str
    begin: float
    end: float


def _takeover(session: Session, at: float, job_id: str) -> _Took | None:
    """From the death to the next claim; None if the attempt did not end by it."""
    attempts = progress.attempts(session, job_id)
    dead = _running_at(attempts, at)
    if dead is None or dead.ended != StatusReason.WORKER_LOST or dead.attempt == len(attempts):
        return None
    return _Took(job_id, at, attempts[dead.attempt].started_at.timestamp())


def _preemption(session: Session, at: float, job_id: str) -> _Took | None:
    """From the signal to the moment when the next worker may have the job."""
    attempt = _running_at(progress.attempts(session, job_id), at)
    if attempt is None or attempt.ended != StatusReason.PREEMPTED or attempt.ended_at is None:
        return None
    return _Took(job_id, at, attempt.ended_at.timestamp())


def _running_at(attempts: Sequence[JobAttempt], at: float) -> JobAttempt | None:
    return next((one for one in reversed(attempts) if one.started_at.timestamp() <= at), None)


def _figures(took: Iterable[_Took | None], faults: Sequence[Done]) -> Figures:
    found = [one for one in took if one is not None]
    return Figures(
        quiet=sorted(one.end - one.begin for one in found if not _is_disturbed(one, faults)),
        all=sorted(one.end - one.begin for one in found),
    )


def _is_disturbed(took: _Took, faults: Sequence[Done]) -> bool:
    return any(begin <= took.end and took.begin <= end for begin, end in _disturbances(took.job_id, faults))


def _disturbances(job_id: str, faults: Sequence[Done]) -> Iterable[tuple[float, float]]:
    for fault in faults:
        if fault.kind in OUTAGES:
            yield fault.at, (fault.until or fault.at) + OUTAGES[FaultKind(fault.kind)]
        elif fault.kind in (FaultKind.PAUSE, FaultKind.CANCEL) and fault.job_id == job_id:
            yield fault.at, (fault.until or fault.at) + 5.0


def _redone(session: Session, faults: Sequence[Done], submitted: Sequence[Submit]) -> list[tuple[int, int]]:
    interval = {submit.number: submit.save_every for submit in submitted}
    damaged = {fault.job_id for fault in faults if fault.kind == FaultKind.DAMAGE_CHECKPOINT}
    return [
        (redone, interval[number_of(job)])
        for job in all_jobs(session).values()
        if job.id not in damaged
        for redone in _redone_of(session, job)
    ]


def _redone_of(session: Session, job: Job) -> list[int]:
    found = events.oldest_first(session, job.id, after_seq=0, limit=1_000_000)
    return [event.data["redone_steps"] for event in found if event.code in ("resumed", "restarted")]
