"""Findings and the situation of a job, from facts alone: each rule is met, and just not met."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.diagnostics import situation
from app.diagnostics.findings import findings
from app.diagnostics.replies import Finding, Severity, WaitsFor
from app.diagnostics.situation import in_words
from core.activity import DatedActivity
from core.db.evidence import Evidence, Notice
from core.db.models import Checkpoint, Export, Job, JobAttempt
from core.settings import ExportTarget, Settings
from core.spec import ResourcesSpec
from core.status import JobStatus, StatusReason
from tests.factories import make_spec

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
SETTINGS = Settings(_env_file=None, max_failures=3, max_preemptions=100, hint_repeat_s=30, lease_ttl_s=60)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def make_job(status: JobStatus = JobStatus.RUNNING, **changes: Any) -> Job:
    """A healthy one; checkpoints are due every 2 steps."""
    facts: dict[str, Any] = {
        "id": "ftjob-1",
        "status": status,
        "spec": make_spec().model_dump(mode="json"),
        "created_at": ago(1000),
        "started_at": ago(900),
        "attempt": 1,
        "failures": 0,
        "preemptions": 0,
        "step": 0,
        "hinted_at": ago(5),
    }
    if status is JobStatus.RUNNING:
        facts |= {"lease_owner": "gpu-1", "lease_expires_at": NOW + timedelta(seconds=50)}
    return Job(**(facts | changes))


def make_evidence(**changes: Any) -> Evidence:
    healthy = Evidence(
        at=NOW,
        status_since=ago(100),
        jobs_ahead=0,
        attempts=(),
        newest_step=None,
        durable=None,
        corrupt=(),
        notices=(),
    )
    return replace(healthy, **changes)


def attempt(number: int, ended: str | None, *, last_step: int = 0, resumed_from: int | None = None) -> JobAttempt:
    """Each took 10 s, the last of ten ended 10 s ago."""
    return JobAttempt(
        job_id="ftjob-1",
        attempt=number,
        owner="gpu-1",
        started_at=ago(120 - 10 * number),
        ended_at=None if ended is None else ago(110 - 10 * number),
        ended=ended,
        last_step=last_step,
        resumed_from_step=resumed_from,
    )


def checkpoint(step: int, *, made_ago_s: float = 10, corrupt_ago_s: float | None = None) -> Checkpoint:
    corrupt_at = None if corrupt_ago_s is None else ago(corrupt_ago_s)
    return Checkpoint(id=f"ftckpt-{step}", step=step, created_at=ago(made_ago_s), corrupt_at=corrupt_at)


def activity(**changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"phase": "generation", "since": ago(12).timestamp(), "for_s": 2.0, "step": 3}
    return DatedActivity(**(facts | changes)).model_dump(mode="json")


def codes(job: Job, evidence: Evidence) -> list[str]:
    return [finding.code for finding in findings(job, evidence, SETTINGS)]


def only(job: Job, evidence: Evidence) -> Finding:
    (finding,) = findings(job, evidence, SETTINGS)
    assert finding.fix
    assert finding.first_seen <= finding.last_seen
    return finding


@pytest.mark.parametrize("status", JobStatus)
def test_a_healthy_job_has_no_findings(status: JobStatus) -> None:
    assert codes(make_job(status), make_evidence()) == []


def test_damaged_checkpoints_are_one_finding_with_their_steps_and_what_is_left() -> None:
    corrupt = (checkpoint(4, corrupt_ago_s=50), checkpoint(6, corrupt_ago_s=20))
    finding = only(make_job(step=2, durable_step=2), make_evidence(corrupt=corrupt, durable=checkpoint(2)))
    assert (finding.code, finding.severity, finding.count) == ("checkpoint_corrupt", Severity.WARNING, 2)
    assert finding.evidence == {"steps": [4, 6], "newest_whole_step": 2}
    assert (finding.first_seen, finding.last_seen) == (ago(50).timestamp(), ago(20).timestamp())


def test_damaged_checkpoints_with_none_left_are_an_error() -> None:
    finding = only(make_job(), make_evidence(corrupt=(checkpoint(4, corrupt_ago_s=50),)))
    assert (finding.severity, finding.evidence["newest_whole_step"]) == (Severity.ERROR, None)


def test_failures_in_a_row_are_told_against_the_budget() -> None:
    attempts = tuple(attempt(n, "trainer_crashed" if n != 2 else "preempted") for n in (1, 2, 3))
    found = findings(make_job(failures=2, preemptions=1), make_evidence(attempts=attempts), SETTINGS)
    by_code = {finding.code: finding for finding in found}
    assert by_code.keys() == {"failures_in_a_row", "trainer_crashed", "preempted"}
    assert by_code["failures_in_a_row"].evidence == {"failures": 2, "budget": 3, "left": 1}
    assert by_code["failures_in_a_row"].count == 2
    assert by_code["trainer_crashed"].evidence["attempts"] == [1, 3]
    assert by_code["preempted"].severity is Severity.INFO


def test_failures_that_progress_has_forgiven_are_not_told_as_a_row() -> None:
    assert codes(make_job(failures=0), make_evidence(attempts=(attempt(1, "worker_lost"),))) == ["worker_lost"]


def test_watchdog_kills_are_counted() -> None:
    attempts = (attempt(1, "trainer_hung", last_step=7), attempt(2, "trainer_hung", last_step=9, resumed_from=7))
    finding = only(make_job(), make_evidence(attempts=attempts))
    assert (finding.code, finding.count) == ("trainer_hung", 2)
    assert finding.evidence == {"attempts": [1, 2], "at_steps": [7, 9]}
    assert finding.last_seen == ago(90).timestamp()


@pytest.mark.parametrize(("preemptions", "severity"), [(49, Severity.INFO), (50, Severity.WARNING)])
def test_preemptions_are_a_warning_only_near_their_limit(preemptions: int, severity: Severity) -> None:
    finding = only(make_job(preemptions=preemptions), make_evidence(attempts=(attempt(1, "preempted"),)))
    assert (finding.code, finding.severity) == ("preempted", severity)
    assert finding.evidence == {"preemptions": preemptions, "limit": 100}


@pytest.mark.parametrize(("resumed_from", "redone", "severity"), [(18, 2, Severity.INFO), (10, 10, Severity.WARNING)])
def test_steps_done_again_are_told_as_a_share(resumed_from: int, redone: int, severity: Severity) -> None:
    first, second = attempt(1, "preempted", last_step=20), attempt(2, None, last_step=40, resumed_from=resumed_from)
    found = findings(make_job(preemptions=1), make_evidence(attempts=(first, second)), SETTINGS)
    (finding,) = (one for one in found if one.code == "work_redone")
    trained = 20 + 40 - resumed_from
    assert finding.evidence == {"redone_steps": redone, "trained_steps": trained, "share": round(redone / trained, 4)}
    assert finding.severity is severity


def test_steps_without_any_durable_one_are_told_once_a_save_was_due() -> None:
    assert codes(make_job(step=2), make_evidence()) == []
    finding = only(make_job(step=3), make_evidence())
    assert (finding.code, finding.evidence["step"]) == ("no_durable_checkpoint", 3)
    assert finding.first_seen == ago(900).timestamp()
    assert codes(make_job(JobStatus.FAILED, step=3), make_evidence()) == []


def test_a_durable_step_that_falls_behind_is_told() -> None:
    evidence = make_evidence(durable=checkpoint(2, made_ago_s=400))
    assert codes(make_job(step=6, durable_step=2), evidence) == []
    finding = only(make_job(step=7, durable_step=2), evidence)
    assert (finding.code, finding.first_seen) == ("checkpoint_late", ago(400).timestamp())


def test_a_job_that_nobody_is_told_of_points_at_the_dispatcher() -> None:
    job = make_job(JobStatus.QUEUED, hinted_at=None)
    assert codes(job, make_evidence(status_since=ago(59))) == []
    assert codes(job, make_evidence(status_since=ago(61))) == ["not_dispatched"]


def test_the_first_of_the_queue_that_nobody_takes_points_at_the_workers() -> None:
    job = make_job(JobStatus.QUEUED, hinted_at=ago(5))
    assert codes(job, make_evidence(status_since=ago(299))) == []
    assert codes(job, make_evidence(status_since=ago(301), jobs_ahead=1)) == []
    assert codes(job, make_evidence(status_since=ago(301))) == ["no_worker"]


def test_a_job_of_several_gpus_that_nobody_takes_says_how_many_it_wants() -> None:
    spec = make_spec(resources=ResourcesSpec(gpus=4)).model_dump(mode="json")
    finding = only(make_job(JobStatus.QUEUED, hinted_at=ago(5), spec=spec), make_evidence(status_since=ago(301)))
    assert (finding.code, finding.evidence["gpus"]) == ("no_worker", 4)
    assert "a worker with 4 GPUs (PODIUM_GPUS)" in finding.fix


def test_a_lease_that_ran_out_is_told() -> None:
    assert codes(make_job(lease_expires_at=ago(1)), make_evidence()) == ["lease_expired"]


def test_a_phase_is_slow_from_half_its_deadline_on() -> None:
    def slow(spent_s: float) -> list[str]:
        job = make_job(activity=activity(since=ago(spent_s).timestamp(), deadline_s=300, longest_s=30))
        return codes(job, make_evidence())

    assert slow(149) == []
    assert slow(150) == ["phase_slow"]


@pytest.mark.parametrize("part", ["ledger", "store"])
def test_what_does_not_answer_its_worker_is_told(part: str) -> None:
    finding = only(make_job(activity=activity(waiting_for=part)), make_evidence())
    assert finding.code == f"{part}_unreachable"


def test_warnings_of_the_log_that_have_an_answer_are_findings() -> None:
    known = Notice("held_out_overlap", "2 rows are in both files.", {"rows": 2}, 3, ago(90), ago(30))
    other = replace(known, code="worker_lost")
    finding = only(make_job(), make_evidence(notices=(known, other)))
    assert (finding.code, finding.message, finding.evidence) == (known.code, known.message, known.data)
    assert (finding.first_seen, finding.last_seen, finding.count) == (ago(90).timestamp(), ago(30).timestamp(), 3)


def test_a_failed_job_has_its_error_first() -> None:
    error = {"code": "out_of_memory", "message": "The GPU is full.", "param": None, "fix": None}
    job = make_job(JobStatus.FAILED, error=error, failures=3, status_reason=StatusReason.OUT_OF_MEMORY)
    attempts = tuple(attempt(n, "out_of_memory") for n in (1, 2, 3))
    first, *rest = findings(job, make_evidence(attempts=attempts), SETTINGS)
    assert (first.code, first.severity, first.message) == ("out_of_memory", Severity.ERROR, "The GPU is full.")
    assert first.fix
    assert {finding.code for finding in rest} == {"failures_in_a_row", "out_of_memory"}


def test_an_activity_in_a_form_of_another_version_is_no_activity() -> None:
    job = make_job(activity={"phase": "dreaming", "since": 1.0, "depth": 3})
    assert situation.run(job, make_evidence(), lease_ttl_s=60).activity is None
    assert situation.now(job, make_evidence()).waiting_for is WaitsFor.TRAINER


def test_a_queued_job_says_what_is_ahead_and_when_workers_were_told() -> None:
    job = make_job(JobStatus.QUEUED, hinted_at=ago(12), status_reason=StatusReason.PREEMPTED)
    now = situation.now(job, make_evidence(jobs_ahead=2))
    assert (now.waiting_for, now.since, now.for_s) == (WaitsFor.WORKER, ago(100).timestamp(), 100)
    assert now.summary == (
        "Waits for a worker (its last worker was told to go) since 1 min 40 s. 2 jobs are ahead. "
        "Workers were last told of it 12 s ago."
    )
    assert "not been told" in situation.now(make_job(JobStatus.QUEUED, hinted_at=None), make_evidence()).summary


def test_a_running_job_says_its_phase_and_what_is_usual() -> None:
    job = make_job(activity=activity(longest_s=30, deadline_s=300))
    now = situation.now(job, make_evidence())
    assert (now.waiting_for, now.for_s) == (WaitsFor.TRAINER, 12)
    assert (
        now.summary == "Phase generation of step 3 for 12 s (at most 30 s before, the watchdog acts after 5 min 0 s)."
    )


def test_a_running_job_says_what_does_not_answer_and_what_was_wished() -> None:
    job = make_job(activity=activity(waiting_for="store"), pause_requested_at=ago(3))
    now = situation.now(job, make_evidence())
    assert now.waiting_for is WaitsFor.STORE
    assert "asked to pause" in now.summary
    assert "store does not answer" in now.summary
    assert situation.pause(job).what_to_do.startswith("Wait")


def test_a_job_whose_worker_fell_silent_waits_for_another() -> None:
    now = situation.now(make_job(lease_expires_at=ago(20), durable_step=4), make_evidence())
    assert (now.waiting_for, now.for_s) == (WaitsFor.WORKER, 20)
    assert "goes on from step 4" in now.summary


def test_the_lease_was_last_good_when_it_was_renewed() -> None:
    run = situation.run(make_job(), make_evidence(), lease_ttl_s=60)
    assert run is not None
    assert (run.lease.stands, run.lease.last_good_at) == (True, ago(10).timestamp())
    longer = situation.run(make_job(), make_evidence(), lease_ttl_s=10)
    assert longer is not None
    assert longer.lease.last_good_at == NOW.timestamp(), (
        "a worker may be set otherwise, but nobody renews in the future"
    )


def test_a_paused_job_says_why_and_what_to_do() -> None:
    by_owner = make_job(JobStatus.PAUSED, status_reason=StatusReason.USER_PAUSED, durable_step=40)
    now = situation.now(by_owner, make_evidence())
    assert now.waiting_for is WaitsFor.PERSON
    assert (
        now.summary == "Paused by its owner 1 min 40 s ago; it goes on from step 40. POST .../resume queues it again."
    )


def test_a_job_that_its_worker_paused_says_what_is_to_be_mended() -> None:
    job = make_job(JobStatus.PAUSED, status_reason=StatusReason.DISK_FULL)
    said = Notice("paused", "Paused: the disk of gpu-1 is full.", {}, 1, ago(100), ago(100))
    summary = situation.now(job, make_evidence(notices=(said,))).summary
    assert "goes on from the start" in summary
    assert summary.endswith(said.message)
    assert situation.pause(job).what_to_do.startswith("Mend")
    assert "disk_full" in situation.now(job, make_evidence()).summary


@pytest.mark.parametrize("status", [status for status in JobStatus if status.is_terminal])
def test_a_job_that_has_ended_waits_for_nothing(status: JobStatus) -> None:
    job = make_job(status, durable_step=4, step=6)
    assert situation.now(job, make_evidence()).waiting_for is WaitsFor.NOTHING
    assert (situation.pause(job), situation.queue(job, make_evidence())) == (None, None)
    assert situation.steps_at_risk(job) == 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7440, "2 h 4 min"), (435_600, "5 d 1 h")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize(("finished_at", "words"), [(None, "tried again"), (NOW, "given up")])
def test_an_export_that_fails_is_a_warning_of_its_own_job(finished_at: datetime | None, words: str) -> None:
    export = Export(
        target=ExportTarget.WANDB,
        failing_since=ago(600),
        failures=7,
        error_code="export_not_configured",
        finished_at=finished_at,
    )
    (finding,) = findings(make_job(), make_evidence(failing_exports=[export]), SETTINGS)
    assert (finding.code, finding.severity, finding.count) == ("export_failing", Severity.WARNING, 7)
    assert "wandb" in finding.message
    assert words in finding.message
    assert finding.evidence == {"target": "wandb", "reason": "export_not_configured", "failures": 7}
    assert finding.first_seen == int(ago(600).timestamp())
