"""The judge: reads the ledger, the store and the trainers' own log after a run, and says what must never have happened.

It believes nothing that the processes under test say about themselves, and it can be wrong in one direction only: the
negative control (no fencing) has to make it speak.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import text
from sqlalchemy.orm import Session

from bench._chaos import objects
from bench._chaos.clients import Heard
from bench._chaos.compute import Span, overlaps, steps_begun
from bench._chaos.ledger import ALL, all_jobs, number_of
from bench._chaos.plan import Submit
from bench._chaos.trainer import Computed
from bench._chaos.weights import as_metric, weights
from core.db import events, progress
from core.db.models import Checkpoint, Job
from core.db.session import Sessions
from core.ids import JobId
from core.status import JobStatus
from core.storage.store import ObjectStore


class Wrong(StrEnum):
    LOST = "lost"
    """A job, a step or a result that should be there and is not."""
    DOUBLED = "doubled"
    """Something that was to happen once happened twice, and counted."""
    STALE = "stale write"
    """The ledger took a write of an attempt that was not the current one."""
    BAD_LOAD = "bad load"
    """A checkpoint that is torn, changed or another's was loaded, or is promised."""
    GAP = "event gap"
    ORPHAN = "orphan"
    """A trainer or grader outlived its supervisor."""


@dataclass(frozen=True, slots=True)
class Violation:
    wrong: Wrong
    job_id: str
    what: str


@dataclass(frozen=True, slots=True)
class Evidence:
    submitted: Sequence[Submit]
    heard: Heard
    computed: Sequence[Computed]
    frozen: Sequence[Span]
    """When supervisors were frozen."""
    damaged: frozenset[str]
    """Ids of checkpoints that we harmed ourselves."""
    left_behind: Sequence[str]
    longest_overlap_s: float
    """What two trainers of one job may at most share, when no freeze explains it."""


def judge(sessions: Sessions, store: ObjectStore, evidence: Evidence) -> list[Violation]:
    with sessions() as session:
        jobs = all_jobs(session)
        begun = steps_begun(evidence.computed)
        found = [
            *_submissions(jobs, evidence),
            *_orphans(evidence),
            *_bad_loads(evidence),
            *_double_computing(evidence),
            *_stale_writes(session),
            *_doubled_writes(session),
        ]
        for job in jobs.values():
            found += _ending(session, job, evidence)
            found += _event_log(session, job)
            found += _steps(session, job, begun)
            found += _order_of_attempts(session, job)
            found += _checkpoints(session, store, job, evidence.damaged)
            if job.status is JobStatus.SUCCEEDED:
                found += [Violation(Wrong.LOST, job.id, what) for what in objects.missing_results(session, store, job)]
    return found


def _submissions(jobs: Mapping[JobId, Job], evidence: Evidence) -> Iterator[Violation]:
    """Each exists exactly once, under the one id that its client was told."""
    counted = Counter(number_of(job) for job in jobs.values())
    for submit in evidence.submitted:
        told = evidence.heard.ids.get(submit.number, set())
        count = counted[submit.number]
        if count != 1:
            yield Violation(Wrong.DOUBLED if count else Wrong.LOST, "-", f"submission {submit.number} is {count} jobs")
        if len(told) != 1 or not told <= set(jobs):
            yield Violation(Wrong.DOUBLED if len(told) > 1 else Wrong.LOST, "-", f"its client was told {sorted(told)}")
    for refusal in evidence.heard.refused:
        yield Violation(Wrong.LOST, "-", refusal)


def _orphans(evidence: Evidence) -> Iterator[Violation]:
    for process in evidence.left_behind:
        yield Violation(Wrong.ORPHAN, "-", process)


def _bad_loads(evidence: Evidence) -> Iterator[Violation]:
    for line in evidence.computed:
        if line.kind == "bad_load":
            yield Violation(Wrong.BAD_LOAD, line.job_id, f"attempt {line.attempt} loaded {line.detail}")


def _double_computing(evidence: Evidence) -> Iterator[Violation]:
    for overlap in overlaps(evidence.computed, evidence.frozen):
        if overlap.seconds > evidence.longest_overlap_s:
            what = f"attempts {overlap.earlier} and {overlap.later} computed together for {overlap.seconds:.2f} s"
            yield Violation(Wrong.DOUBLED, overlap.job_id, what)


def _stale_writes(session: Session) -> Iterator[Violation]:
    query = "SELECT relation, job_id, attempt, current_attempt FROM chaos_writes WHERE attempt <> current_attempt"
    for relation, job_id, attempt, current in session.execute(text(f"{query} ORDER BY id")):
        yield Violation(Wrong.STALE, job_id, f"{relation} took a write of attempt {attempt} under attempt {current}")


def _doubled_writes(session: Session) -> Iterator[Violation]:
    query = (
        "SELECT job_id, step, attempt, count(*) FROM chaos_writes WHERE relation IN ('step_metrics', 'checkpoints')"
        " GROUP BY relation, job_id, step, attempt HAVING count(*) > 1"
    )
    for job_id, step, attempt, count in session.execute(text(query)):
        yield Violation(Wrong.DOUBLED, job_id, f"step {step} of attempt {attempt} was taken {count} times")


def _ending(session: Session, job: Job, evidence: Evidence) -> Iterator[Violation]:
    """Succeeded, or cancelled if that was asked; and no more than one attempt says so."""
    explained = job.status is JobStatus.CANCELLED and job.id in evidence.heard.cancel_asked
    if job.status is not JobStatus.SUCCEEDED and not explained:
        yield Violation(Wrong.LOST, job.id, f"is {job.status} ({job.status_reason}): {job.error}")
    attempts = progress.attempts(session, job.id)
    successes = sum(attempt.ended == JobStatus.SUCCEEDED for attempt in attempts)
    if successes != (job.status is JobStatus.SUCCEEDED):
        yield Violation(Wrong.DOUBLED, job.id, f"is {job.status} with {successes} successful attempts")
    if [attempt.attempt for attempt in attempts] != list(range(1, job.attempt + 1)):
        yield Violation(Wrong.LOST, job.id, f"attempt is {job.attempt}, of which {len(attempts)} are recorded")


def _event_log(session: Session, job: Job) -> Iterator[Violation]:
    """`seq` is 1, 2, 3, ...; attempts never go down; the last word is one final status."""
    found = events.oldest_first(session, job.id, after_seq=0, limit=ALL)
    if [event.seq for event in found] != list(range(1, job.next_event_seq)):
        yield Violation(Wrong.GAP, job.id, f"{len(found)} events for seq 1 to {job.next_event_seq - 1}")
    attempts = [event.attempt for event in found]
    if attempts != sorted(attempts):
        yield Violation(Wrong.STALE, job.id, "an event of an earlier attempt stands behind a later one's")
    endings = [event.code for event in found if event.data.get("to") in ("succeeded", "failed", "cancelled")]
    if len(endings) != job.status.is_terminal:
        yield Violation(Wrong.DOUBLED, job.id, f"ended {len(endings)} times: {endings}")


def _steps(session: Session, job: Job, begun: set[tuple[str, int, int]]) -> Iterator[Violation]:
    """1 to N without a hole, each with the numbers that this step must have, computed by who is named."""
    rows = progress.steps(session, job.id)
    complete = job.spec["hyperparameters"]["max_steps"] if job.status is JobStatus.SUCCEEDED else len(rows)
    if [row.step for row in rows] != list(range(1, complete + 1)):
        yield Violation(Wrong.LOST, job.id, f"{complete} steps, recorded {[row.step for row in rows]}")
    for row in rows:
        if row.metrics["weights"] != as_metric(weights(job.seed, row.step)):
            yield Violation(Wrong.BAD_LOAD, job.id, f"step {row.step} of attempt {row.attempt} went another way")
        if row.metrics["attempt"] != row.attempt or (job.id, row.attempt, row.step) not in begun:
            yield Violation(Wrong.STALE, job.id, f"step {row.step} is not what attempt {row.attempt} computed")


def _order_of_attempts(session: Session, job: Job) -> Iterator[Violation]:
    """All that attempt n wrote is older than attempt n + 1, by the database's clock."""
    begins = {attempt.attempt: attempt.started_at for attempt in progress.attempts(session, job.id)}
    written = [(row.attempt, row.created_at, f"step {row.step}") for row in progress.steps(session, job.id)]
    written += [(row.attempt, row.created_at, f"checkpoint {row.step}") for row in objects.checkpoints(session, job)]
    for attempt, at, what in written:
        next_began = begins.get(attempt + 1)
        if next_began is not None and at > next_began:
            yield Violation(Wrong.STALE, job.id, f"{what} of attempt {attempt} came after attempt {attempt + 1} began")


def _checkpoints(session: Session, store: ObjectStore, job: Job, damaged: frozenset[str]) -> Iterator[Violation]:
    """Every one that is promised can be loaded, and none was given up that nobody harmed."""
    for checkpoint in objects.checkpoints(session, job):
        if checkpoint.id in damaged or checkpoint.collected_at is not None:
            continue
        what = _name(checkpoint)
        if checkpoint.corrupt_at is not None:
            yield Violation(Wrong.BAD_LOAD, job.id, f"{what} was given up, and nobody had harmed it")
        elif (problem := objects.problem_of(store, job, checkpoint)) is not None:
            yield Violation(Wrong.BAD_LOAD, job.id, f"{what}: {problem}")


def _name(checkpoint: Checkpoint) -> str:
    return f"checkpoint {checkpoint.step} of attempt {checkpoint.attempt}"
