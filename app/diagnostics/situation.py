"""What a job waits for right now, and since when, in words and fields. Pure over the job's row and its evidence."""

from datetime import datetime, timedelta

from pydantic import ValidationError

from app.diagnostics.replies import ActivityNow, LeaseNow, PauseNow, QueuePlace, RunNow, StepAge, WaitingNow, WaitsFor
from app.jobs.replies import unix, unix_or_none
from core.activity import DatedActivity
from core.db.evidence import Evidence
from core.db.models import Job
from core.status import JobStatus, StatusReason

_UNITS = (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1))
_BACK_IN_QUEUE = {
    StatusReason.PREEMPTED: "its last worker was told to go",
    StatusReason.WORKER_LOST: "its last worker was lost",
    StatusReason.USER_PAUSED: "it was resumed while its trainer was stopping",
}


def now(job: Job, evidence: Evidence) -> WaitingNow:
    match job.status:
        case JobStatus.QUEUED | JobStatus.VALIDATING_FILES:
            waiting_for, since, summary = WaitsFor.WORKER, evidence.status_since, _queued(job, evidence)
        case JobStatus.RUNNING if not lease_stands(job, evidence):
            assert job.lease_expires_at is not None
            waiting_for, since, summary = WaitsFor.WORKER, job.lease_expires_at, _lost(job, evidence)
        case JobStatus.RUNNING:
            waiting_for, since, summary = _running(job, evidence)
        case JobStatus.PAUSED:
            waiting_for, since, summary = WaitsFor.PERSON, evidence.status_since, _paused(job, evidence)
        case _:
            waiting_for, since, summary = WaitsFor.NOTHING, evidence.status_since, _ended(job)
    return WaitingNow(waiting_for=waiting_for, summary=summary, since=unix(since), for_s=_age_s(since, evidence))


def queue(job: Job, evidence: Evidence) -> QueuePlace | None:
    if job.status is not JobStatus.QUEUED:
        return None
    return QueuePlace(jobs_ahead=evidence.jobs_ahead, last_hinted_at=unix_or_none(job.hinted_at))


def run(job: Job, evidence: Evidence, *, lease_ttl_s: float) -> RunNow | None:
    """`lease_ttl_s` is what a renewal grants: the row only knows when the lease ends."""
    if job.status is not JobStatus.RUNNING or job.lease_expires_at is None:
        return None
    renewed_at = min(job.lease_expires_at - timedelta(seconds=lease_ttl_s), evidence.at)
    return RunNow(
        attempt=job.attempt,
        stage=job.stage,
        activity=_activity_now(job, evidence),
        lease=LeaseNow(
            stands=lease_stands(job, evidence),
            last_good_at=unix(renewed_at),
            expires_at=unix(job.lease_expires_at),
        ),
    )


def pause(job: Job) -> PauseNow | None:
    is_asked = job.status is JobStatus.RUNNING and job.pause_requested_at is not None
    if job.status is not JobStatus.PAUSED and not is_asked:
        return None
    return PauseNow(
        requested_at=unix_or_none(job.pause_requested_at),
        reason=StatusReason.USER_PAUSED if is_asked else job.status_reason,
        safe_step=job.durable_step,
        what_to_do="Wait: the trainer ends its step and saves." if is_asked else _what_to_do(job),
    )


def newest_step(evidence: Evidence) -> StepAge | None:
    row = evidence.newest_step
    return None if row is None else _step_age(row.step, row.created_at, evidence)


def durable_step(evidence: Evidence) -> StepAge | None:
    row = evidence.durable
    return None if row is None else _step_age(row.step, row.created_at, evidence)


def steps_at_risk(job: Job) -> int:
    return 0 if job.status.is_terminal else max(0, job.step - (job.durable_step or 0))


def lease_stands(job: Job, evidence: Evidence) -> bool:
    return job.lease_expires_at is not None and job.lease_expires_at > evidence.at


def activity_of(job: Job) -> DatedActivity | None:
    """None where nothing is known, or where a worker of another version says it in another form."""
    if job.activity is None:
        return None
    try:
        return DatedActivity.model_validate(job.activity)
    except ValidationError:
        return None


def in_words(seconds: float) -> str:
    """`12 s`, `3 min 5 s`, `2 h 4 min`, `5 d 1 h`."""
    whole = round(seconds)
    for unit, size, smaller, part in _UNITS:
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part} {smaller}"
    return f"{whole} s"


def _queued(job: Job, evidence: Evidence) -> str:
    why = f" ({_BACK_IN_QUEUE[job.status_reason]})" if job.status_reason in _BACK_IN_QUEUE else ""
    told = "Workers have not been told of it yet."
    if job.hinted_at is not None:
        told = f"Workers were last told of it {in_words(_age_s(job.hinted_at, evidence))} ago."
    ahead = {0: "It is first in the queue.", 1: "1 job is ahead."}
    place = ahead.get(evidence.jobs_ahead, f"{evidence.jobs_ahead} jobs are ahead.")
    return f"Waits for a worker{why} since {in_words(_age_s(evidence.status_since, evidence))}. {place} {told}"


def _lost(job: Job, evidence: Evidence) -> str:
    assert job.lease_expires_at is not None
    ago = in_words(_age_s(job.lease_expires_at, evidence))
    return f"Its worker fell silent: the lease ran out {ago} ago. The next free worker goes on from {_safe(job)}."


def _running(job: Job, evidence: Evidence) -> tuple[WaitsFor, datetime, str]:
    activity = activity_of(job)
    wish = _wish(job)
    if activity is None:
        return WaitsFor.TRAINER, evidence.status_since, f"{wish}A worker has just taken it."
    since = datetime.fromtimestamp(activity.since, evidence.at.tzinfo)
    if activity.waiting_for in (WaitsFor.LEDGER, WaitsFor.STORE):
        what = WaitsFor(activity.waiting_for)
        summary = f"{wish}The {what} does not answer its worker, which tries again. {_phase(activity, evidence)}"
        return what, since, summary
    return WaitsFor.TRAINER, since, f"{wish}{_phase(activity, evidence)}"


def _wish(job: Job) -> str:
    if job.cancel_requested_at is not None:
        return "It is asked to stop, and does when its trainer has ended its step. "
    if job.pause_requested_at is not None:
        return "It is asked to pause, and does when its trainer has ended its step and saved. "
    return ""


def _phase(activity: DatedActivity, evidence: Evidence) -> str:
    step = "" if activity.step is None else f" of step {activity.step}"
    took = in_words(max(0.0, evidence.at.timestamp() - activity.since))
    return f"Phase {activity.phase}{step} for {took}{_usual(activity)}."


def _usual(activity: DatedActivity) -> str:
    facts = []
    if activity.longest_s is not None:
        facts.append(f"at most {in_words(activity.longest_s)} before")
    if activity.deadline_s is not None:
        facts.append(f"the watchdog acts after {in_words(activity.deadline_s)}")
    return f" ({', '.join(facts)})" if facts else ""


def _paused(job: Job, evidence: Evidence) -> str:
    ago = in_words(_age_s(evidence.status_since, evidence))
    if job.status_reason is StatusReason.USER_PAUSED:
        return f"Paused by its owner {ago} ago; it goes on from {_safe(job)}. {_what_to_do(job)}"
    said = [notice.message for notice in evidence.notices if notice.code == JobStatus.PAUSED]
    why = said[0] if said else f"Its reason is {job.status_reason}."
    return f"Paused by its worker {ago} ago; it goes on from {_safe(job)}. {_what_to_do(job)} {why}"


def _ended(job: Job) -> str:
    why = f" ({job.status_reason})" if job.status_reason else ""
    kept = f" Step {job.durable_step} is durable and can be downloaded." if job.durable_step else ""
    return f"The job has ended: {job.status}{why}.{kept}"


def _safe(job: Job) -> str:
    return f"step {job.durable_step}" if job.durable_step else "the start"


def _what_to_do(job: Job) -> str:
    mend = "" if job.status_reason is StatusReason.USER_PAUSED else "Mend what its worker complained of; then "
    return f"{mend}POST .../resume queues it again."


def _activity_now(job: Job, evidence: Evidence) -> ActivityNow | None:
    activity = activity_of(job)
    if activity is None:
        return None
    return ActivityNow(
        phase=activity.phase,
        step=activity.step,
        since=int(activity.since),
        for_s=round(max(0.0, evidence.at.timestamp() - activity.since), 1),
        longest_s=activity.longest_s,
        deadline_s=activity.deadline_s,
        waiting_for=activity.waiting_for,
    )


def _step_age(step: int, at: datetime, evidence: Evidence) -> StepAge:
    return StepAge(step=step, at=unix(at), age_s=_age_s(at, evidence))


def _age_s(moment: datetime, evidence: Evidence) -> float:
    return round(max(0.0, (evidence.at - moment).total_seconds()), 1)
