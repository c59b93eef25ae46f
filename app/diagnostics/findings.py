"""What a person should know about a job: named, counted, dated, with what to do. Pure over facts of the ledger."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from app.diagnostics.replies import Finding, Severity
from app.diagnostics.situation import activity_of, in_words, lease_stands
from app.jobs.replies import unix
from core.db.evidence import Evidence
from core.db.models import Job, JobAttempt
from core.db.progress import redone_by
from core.settings import Settings
from core.spec import JobSpec
from core.status import JobStatus, StatusReason

REDONE_WARNING_SHARE = 0.1
"""Of all steps trained: from here on the checkpoints are too far apart for the machine."""
LATE_INTERVALS = 2
"""So many checkpoint intervals without a new durable step are too many."""
UNTAKEN_S = 300.0
"""The first job of the queue that waits for longer finds no worker."""
SLOW_SHARE = 0.5
"""Of its deadline; a phase learns its deadline from how long it took before."""

_SEVERITIES = (Severity.ERROR, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True)
class Advice:
    message: str
    fix: str


_ENDINGS = {
    StatusReason.WORKER_LOST: Advice(
        "A worker died or was cut off while it held the job.",
        "Look at that machine: the kernel's out-of-memory killer and the network are the usual causes.",
    ),
    StatusReason.TRAINER_HUNG: Advice(
        "The watchdog ended a trainer that hung.",
        "The stacks in the attempt's last event say where; if the phase is only slow, raise PODIUM_WATCHDOG_FACTOR.",
    ),
    StatusReason.TRAINER_CRASHED: Advice(
        "The trainer process ended without a word.",
        "Read the log lines in the attempt's last event; signal 9 usually means too little memory.",
    ),
    StatusReason.OUT_OF_MEMORY: Advice(
        "The trainer ran out of memory.", "Set rollouts_per_pass lower, or turn gradient_checkpointing on."
    ),
    StatusReason.GRADER_FAILED: Advice(
        "A reward could not be loaded, or failed too often.",
        "Mend the reward, and create the job with its new version.",
    ),
    StatusReason.SAMPLER_FAILED: Advice(
        "The vLLM engine failed, or served other weights than those that are trained.",
        "Read the attempt's last event; the same job with use_vllm off shows whether it is the engine.",
    ),
    StatusReason.STORE_FAILED: Advice(
        "The object store refused, or stayed away for too long.",
        "Ask the operator to look at the store: `podium doctor` and GET /readyz say what is wrong with it.",
    ),
    StatusReason.HUB_FAILED: Advice(
        "The model hub did not answer.",
        "Ask the operator to look at the worker's way to it (HF_ENDPOINT, proxy, token); each try costs no failure.",
    ),
    StatusReason.MODEL_UNUSABLE: Advice(
        "The model is not where it was, or cannot be loaded.",
        "The attempt's last event names what is missing; put it back, then POST .../resume if the job is paused.",
    ),
    StatusReason.DISK_FULL: Advice(
        "The worker's disk or the store was full.", "Make room, then POST .../resume if the job is paused."
    ),
    StatusReason.WORKER_UNFIT: Advice(
        "A worker could not run the job.", "Ask the operator to run `podium doctor` on the worker."
    ),
}
_NOTICES = {
    "evaluation_errors": "Look at the reward: it fails on some held-out tasks, which then count on neither side.",
    "rows_left_out": "Raise max_prompt_length, or shorten the prompts.",
    "held_out_overlap": "Take the rows out of the training file: the verdict is only fair on tasks never trained on.",
    "resume_audit": "Where vLLM or several GPUs generate this is expected; on one device it should not be: report it.",
    "store_unreachable": "Ask the operator to look at the object store; training goes on meanwhile.",
    "store_misconfigured": "Ask the operator to let the worker write to the store again: what waits is uploaded then.",
    "ledger_unreachable": "Ask the operator to look at PostgreSQL; training goes on while the lease stands.",
}


def findings(job: Job, evidence: Evidence, settings: Settings) -> list[Finding]:
    """The gravest first, and the newest of those."""
    found = [
        *_failure(job, evidence),
        *_failures_in_a_row(job, evidence, settings),
        *_endings(evidence),
        *_preemptions(job, evidence, settings),
        *_corrupt(evidence),
        *_redone(evidence),
        *_not_durable(job, evidence),
        *_untaken(job, evidence, settings),
        *_silent_worker(job, evidence),
        *_slow_phase(job, evidence),
        *_away(job, evidence),
        *_notices(evidence),
        *_failing_exports(evidence),
    ]
    return sorted(found, key=lambda finding: (_SEVERITIES.index(finding.severity), -finding.last_seen))


def _failure(job: Job, evidence: Evidence) -> Iterator[Finding]:
    if job.status is not JobStatus.FAILED or job.error is None:
        return
    fix = job.error.get("fix") or "Read the last events: GET .../events."
    facts = {"attempt": job.attempt, "status_reason": job.status_reason}
    yield _finding(job.error["code"], Severity.ERROR, job.error["message"], fix, facts, [evidence.status_since])


def _failures_in_a_row(job: Job, evidence: Evidence, settings: Settings) -> Iterator[Finding]:
    if not job.failures or job.status in (JobStatus.SUCCEEDED, JobStatus.CANCELLED):
        return
    left = max(0, settings.max_failures - job.failures)
    message = (
        f"{job.failures} of the {settings.max_failures} failures in a row that a job may have; "
        "a checkpoint beyond the furthest one sets them back to 0."
    )
    fix = "Mend what the other findings name before the budget is spent; a job that is paused spends nothing."
    failed = [one for one in evidence.attempts if one.ended in _ENDINGS][-job.failures :]
    times = [one.ended_at for one in failed if one.ended_at is not None] or [evidence.at]
    facts = {"failures": job.failures, "budget": settings.max_failures, "left": left}
    yield _finding("failures_in_a_row", Severity.WARNING, message, fix, facts, times, count=job.failures)


def _endings(evidence: Evidence) -> Iterator[Finding]:
    """Attempts that ended badly, by reason."""
    by_reason: defaultdict[StatusReason, list[JobAttempt]] = defaultdict(list)
    for attempt in evidence.attempts:
        if attempt.ended in _ENDINGS:
            by_reason[StatusReason(attempt.ended)].append(attempt)
    for reason, attempts in by_reason.items():
        advice = _ENDINGS[reason]
        facts = {"attempts": [one.attempt for one in attempts], "at_steps": [one.last_step for one in attempts]}
        yield _finding(reason, Severity.WARNING, advice.message, advice.fix, facts, _ended_at(attempts, evidence))


def _preemptions(job: Job, evidence: Evidence, settings: Settings) -> Iterator[Finding]:
    attempts = [one for one in evidence.attempts if one.ended == StatusReason.PREEMPTED]
    if not attempts:
        return
    is_near_limit = 2 * job.preemptions >= settings.max_preemptions
    facts = {"preemptions": job.preemptions, "limit": settings.max_preemptions}
    yield _finding(
        "preempted",
        Severity.WARNING if is_near_limit else Severity.INFO,
        f"Its machine was taken away {job.preemptions} times; that costs no failure.",
        "Nothing, unless the limit is near: then use machines that stay, or raise PODIUM_MAX_PREEMPTIONS.",
        facts,
        _ended_at(attempts, evidence),
    )


def _corrupt(evidence: Evidence) -> Iterator[Finding]:
    times = [one.corrupt_at for one in evidence.corrupt if one.corrupt_at is not None]
    if not times:
        return
    steps = sorted({one.step for one in evidence.corrupt})
    left = None if evidence.durable is None else evidence.durable.step
    yield _finding(
        "checkpoint_corrupt",
        Severity.WARNING if left is not None else Severity.ERROR,
        f"Checkpoints that did not match their digests: of steps {', '.join(map(str, steps))}. They are never used.",
        "Ask the operator to look at the store's disks: what was written there is not what is read.",
        {"steps": steps, "newest_whole_step": left},
        times,
    )


def _redone(evidence: Evidence) -> Iterator[Finding]:
    redone = list(redone_by(evidence.attempts))
    steps = sum(count for _, count in redone)
    if not steps:
        return
    trained = sum(max(0, one.last_step - (one.resumed_from_step or 0)) for one in evidence.attempts)
    share = steps / trained
    yield _finding(
        "work_redone",
        Severity.WARNING if share >= REDONE_WARNING_SHARE else Severity.INFO,
        f"{steps} of {trained} steps ({share:.0%}) were trained more than once, because a worker took them with it.",
        "Save more often: lower checkpoints.every_steps or checkpoints.every_minutes.",
        {"redone_steps": steps, "trained_steps": trained, "share": round(share, 4)},
        [one.started_at for one, _ in redone],
    )


def _every_steps(job: Job) -> int | None:
    """None for a spec of another version: its next claim says what is wrong with it."""
    try:
        return JobSpec.model_validate(job.spec).checkpoints.every_steps
    except ValidationError:
        return None


def _not_durable(job: Job, evidence: Evidence) -> Iterator[Finding]:
    if job.status.is_terminal:
        return
    every = _every_steps(job)
    if every is None:
        return
    behind = job.step - (job.durable_step or 0)
    facts = {"step": job.step, "durable_step": job.durable_step, "every_steps": every}
    fix = "Look at the events and at the store (GET /readyz): what is saved cannot be made durable, or saving is slow."
    since = evidence.durable.created_at if evidence.durable else job.started_at or job.created_at
    if job.durable_step is None and job.step > every:
        message = f"{job.step} steps are done and none is durable: a lost worker would take all of them."
        yield _finding("no_durable_checkpoint", Severity.WARNING, message, fix, facts, [since, evidence.at], count=1)
    elif job.durable_step is not None and behind > LATE_INTERVALS * every:
        message = f"The newest durable step is {behind} steps behind, though one was due every {every}."
        yield _finding("checkpoint_late", Severity.WARNING, message, fix, facts, [since, evidence.at], count=1)


def _untaken(job: Job, evidence: Evidence, settings: Settings) -> Iterator[Finding]:
    waited_s = (evidence.at - evidence.status_since).total_seconds()
    if job.status is not JobStatus.QUEUED or evidence.jobs_ahead:
        return
    since = [evidence.status_since, evidence.at]
    facts = {"waited_s": round(waited_s, 1)}
    if job.hinted_at is None and waited_s > 2 * settings.hint_repeat_s:
        message = f"No worker has been told of it for {in_words(waited_s)}."
        fix = "Ask the operator whether the dispatcher runs and reaches the broker: GET /readyz."
        yield _finding("not_dispatched", Severity.WARNING, message, fix, facts, since, count=1)
    elif job.hinted_at is not None and waited_s > UNTAKEN_S:
        message = f"It is first in the queue, and no worker has taken it for {in_words(waited_s)}."
        fix = "Ask the operator whether a worker is up and free; a worker runs one job at a time, whatever GPUs it has."
        gpus = job.spec.get("resources", {}).get("gpus", 1)
        if gpus > 1:
            facts["gpus"] = gpus
            fix = f"Ask the operator whether a worker with {gpus} GPUs (PODIUM_GPUS) is up and free; others leave it."
        yield _finding("no_worker", Severity.WARNING, message, fix, facts, since, count=1)


def _silent_worker(job: Job, evidence: Evidence) -> Iterator[Finding]:
    expired_at = job.lease_expires_at
    if job.status is not JobStatus.RUNNING or expired_at is None or lease_stands(job, evidence):
        return
    message = "Its worker has not renewed its lease: it died, hangs, or is cut off from the database."
    fix = "Nothing, if another worker is free: it takes over. Otherwise start one."
    facts = {"attempt": job.attempt, "owner": job.lease_owner}
    yield _finding("lease_expired", Severity.WARNING, message, fix, facts, [expired_at, evidence.at], count=1)


def _slow_phase(job: Job, evidence: Evidence) -> Iterator[Finding]:
    activity = activity_of(job)
    if activity is None or activity.deadline_s is None or not lease_stands(job, evidence):
        return
    spent_s = evidence.at.timestamp() - activity.since
    if spent_s < SLOW_SHARE * activity.deadline_s:
        return
    message = (
        f"Phase {activity.phase} has lasted {in_words(spent_s)}; "
        f"after {in_words(activity.deadline_s)} the watchdog ends the trainer."
    )
    fix = "Look at what the phase uses, such as a reward's server; the job goes on from its newest checkpoint then."
    facts = {
        "phase": activity.phase,
        "spent_s": round(spent_s, 1),
        "longest_s": activity.longest_s,
        "deadline_s": activity.deadline_s,
    }
    since = datetime.fromtimestamp(activity.since, evidence.at.tzinfo)
    yield _finding("phase_slow", Severity.WARNING, message, fix, facts, [since, evidence.at], count=1)


def _away(job: Job, evidence: Evidence) -> Iterator[Finding]:
    """What its worker cannot reach at this moment."""
    activity = activity_of(job)
    if activity is None or not lease_stands(job, evidence):
        return
    code = f"{activity.waiting_for}_unreachable"
    if code not in _NOTICES:
        return
    message = f"The {activity.waiting_for} does not answer the job's worker."
    facts = {"phase": activity.phase, "step": activity.step}
    yield _finding(code, Severity.WARNING, message, _NOTICES[code], facts, [evidence.at])


def _notices(evidence: Evidence) -> Iterator[Finding]:
    """Warnings of the event log that have an answer."""
    for notice in evidence.notices:
        if notice.code in _NOTICES:
            times = [notice.first_at, notice.last_at]
            fix = _NOTICES[notice.code]
            yield _finding(notice.code, Severity.WARNING, notice.message, fix, notice.data, times, count=notice.count)


def _failing_exports(evidence: Evidence) -> Iterator[Finding]:
    for export in evidence.failing_exports:
        assert export.failing_since is not None, "asked for"
        ended = "it was given up" if export.finished_at else "it is tried again"
        message = f"The metrics do not reach {export.target}: {export.failures} tries failed in a row, and {ended}."
        fix = "Nothing for the job, which GET .../metrics shows in full; ask the operator to look at the exporter."
        facts = {"target": export.target, "reason": export.error_code, "failures": export.failures}
        times = [export.failing_since, export.finished_at or evidence.at]
        yield _finding("export_failing", Severity.WARNING, message, fix, facts, times, count=export.failures)


def _ended_at(attempts: Sequence[JobAttempt], evidence: Evidence) -> list[datetime]:
    return [one.ended_at or evidence.at for one in attempts]


def _finding(
    code: str,
    severity: Severity,
    message: str,
    fix: str,
    evidence: dict[str, Any],
    times: Sequence[datetime],
    *,
    count: int | None = None,
) -> Finding:
    """`times` are when it was seen; each is one sighting unless `count` says otherwise."""
    return Finding(
        code=code,
        severity=severity,
        message=message,
        fix=fix,
        evidence=evidence,
        first_seen=unix(min(times)),
        last_seen=unix(max(times)),
        count=len(times) if count is None else count,
    )
