"""How long things took: takeover of a dead worker's job, clean preemption, work that was done again.

Times of the ledger are the database's clock, ours is the harness's: one machine, one clock.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from bench._chaos.ledger import ALL, all_jobs, number_of
from bench._chaos.logs import Broken
from bench._chaos.plan import FaultKind, Submit
from bench._chaos.scene import Done
from core.db import events, progress
from core.db.models import JobAttempt
from core.db.session import Sessions
from core.ids import JobId
from core.status import StatusReason

DEADLY = {FaultKind.KILL_SUPERVISOR, FaultKind.KILL_WORKER_TREE, FaultKind.FREEZE_WORKER, FaultKind.FREEZE_SUPERVISOR}
"""The supervisor is gone, or might as well be."""
POLITE = {FaultKind.TERMINATE_WORKER, FaultKind.TERMINATE_SUPERVISOR}
CLAIM_OUTAGES = {
    FaultKind.KILL_POSTGRES: 5.0,
    FaultKind.KILL_VALKEY: 10.0,
    FaultKind.FLUSH_VALKEY: 8.0,
    FaultKind.SILENCE_POSTGRES: 2.0,
    FaultKind.SILENCE_VALKEY: 10.0,
    FaultKind.CUT_CONNECTIONS: 8.0,
}
"""Seconds for which each disturbs claims, beside the time that it lasts; a lost hint is repeated after 7."""
STORE_OUTAGES = {
    FaultKind.KILL_STORE: 5.0,
    FaultKind.SILENCE_STORE: 2.0,
    FaultKind.CUT_CONNECTIONS: 2.0,
}
"""Checkpoints cannot become durable meanwhile."""
OWN = {FaultKind.PAUSE, FaultKind.CANCEL, FaultKind.DAMAGE_CHECKPOINT}
OWN_WISHES_S = 5.0
"""Beyond faults that hold up, or throw back, the one job that they are for."""


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
    redone: Figures
    """Not seconds: steps done again at each recovery, in checkpoint intervals of the job."""


@dataclass(frozen=True, slots=True)
class Evidence:
    faults: Sequence[Done]
    broken: Sequence[Broken]
    supervisors: Mapping[int, str]
    """The job of each supervisor, by process id."""
    submitted: Sequence[Submit]


def measure(sessions: Sessions, evidence: Evidence) -> Timings:
    faults = evidence.faults
    deaths = [(fault.at, fault.job_id) for fault in faults if fault.kind in DEADLY and fault.job_id]
    killed = [broken for broken in evidence.broken if broken.action == "kill" and broken.pid in evidence.supervisors]
    deaths += [(broken.at, evidence.supervisors[broken.pid]) for broken in killed]
    told = [(fault.at, fault.job_id) for fault in faults if fault.kind in POLITE and fault.job_id]
    with sessions() as session:
        return Timings(
            takeovers=_figures([_takeover(session, *death) for death in deaths], faults, CLAIM_OUTAGES),
            preemptions=_figures([_preemption(session, *one) for one in told], faults, CLAIM_OUTAGES),
            redone=_figures(_redone(session, evidence.submitted), faults, STORE_OUTAGES),
        )


@dataclass(frozen=True, slots=True)
class _Took:
    job_id: str
    begin: float
    end: float
    amount: float
    """Seconds, or what else is measured."""


def _takeover(session: Session, at: float, job_id: str) -> _Took | None:
    """From the death to the next claim; None if the attempt did not end by it."""
    attempts = progress.attempts(session, JobId(job_id))
    dead = _running_at(attempts, at)
    if dead is None or dead.ended != StatusReason.WORKER_LOST or dead.attempt == len(attempts):
        return None
    claimed_at = attempts[dead.attempt].started_at.timestamp()
    return _Took(job_id, at, claimed_at, claimed_at - at)


def _preemption(session: Session, at: float, job_id: str) -> _Took | None:
    """From the signal to the moment when the next worker may have the job."""
    attempt = _running_at(progress.attempts(session, JobId(job_id)), at)
    if attempt is None or attempt.ended != StatusReason.PREEMPTED or attempt.ended_at is None:
        return None
    released_at = attempt.ended_at.timestamp()
    return _Took(job_id, at, released_at, released_at - at)


def _running_at(attempts: Sequence[JobAttempt], at: float) -> JobAttempt | None:
    return next((one for one in reversed(attempts) if one.started_at.timestamp() <= at), None)


def _redone(session: Session, submitted: Sequence[Submit]) -> Iterator[_Took]:
    """For each recovery, over the time of the attempt whose work is done again."""
    interval = {submit.number: submit.save_every for submit in submitted}
    for job in all_jobs(session).values():
        begins = {one.attempt: one.started_at.timestamp() for one in progress.attempts(session, job.id)}
        for event in events.oldest_first(session, job.id, after_seq=0, limit=ALL):
            if event.code in ("resumed", "restarted"):
                amount = event.data["redone_steps"] / interval[number_of(job)]
                yield _Took(job.id, begins[event.attempt - 1], event.created_at.timestamp(), amount)


def _figures(took: Iterable[_Took | None], faults: Sequence[Done], outages: Mapping[FaultKind, float]) -> Figures:
    found = [one for one in took if one is not None]
    quiet = [one for one in found if not _is_disturbed(one, faults, outages)]
    return Figures(quiet=sorted(one.amount for one in quiet), all=sorted(one.amount for one in found))


def _is_disturbed(took: _Took, faults: Sequence[Done], outages: Mapping[FaultKind, float]) -> bool:
    disturbances = _disturbances(took.job_id, faults, outages)
    return any(begin <= took.end and took.begin <= end for begin, end in disturbances)


def _disturbances(
    job_id: str, faults: Sequence[Done], outages: Mapping[FaultKind, float]
) -> Iterator[tuple[float, float]]:
    for fault in faults:
        until = fault.until or fault.at
        if fault.kind in outages:
            yield fault.at, until + outages[FaultKind(fault.kind)]
        elif fault.kind in OWN and fault.job_id == job_id:
            yield fault.at, until + OWN_WISHES_S
