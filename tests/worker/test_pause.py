"""Pausing, going on, hanging, full disks, notices: what becomes of a run that is stopped for a reason."""

import errno
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from core.db import jobs
from core.status import JobStatus, StatusReason
from core.storage.store import StoreFull
from tests.factories import event_codes, read_events, read_job
from tests.polling import wait_until
from tests.servers.metadata import running_metadata_server
from tests.worker.workshop import Workshop, is_running, trainer_of
from worker.endings import Ending

SERVE = [["stage", "baseline"], ["baseline"], ["stage", "training"], ["serve"]]
FINISH = [["baseline"], ["steps", 2], ["checkpoint"], ["finish"]]


def ask(workshop: Workshop, job_id, wish) -> bool:
    with workshop.sessions.begin() as session:
        job = jobs.get(session, job_id)
        assert job is not None
        return wish(session, job)


def test_a_pause_ends_with_a_durable_checkpoint_and_a_resume_goes_on_from_it(workshop: Workshop):
    workshop.script(SERVE, FINISH)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 3)
    assert ask(workshop, job_id, jobs.request_pause)
    workshop.wait_for_status(job_id, JobStatus.PAUSED)
    job = read_job(workshop.sessions, job_id)
    assert (job.status_reason, job.lease_owner, job.preemptions) == (StatusReason.USER_PAUSED, None, 0)
    assert job.durable_step == job.step
    assert workshop.event(job_id, "paused") == {
        "from": "running",
        "to": "paused",
        "step": job.step,
        "durable_step": job.step,
        "redone_steps": 0,
    }
    supervisor.wait(10)
    assert ask(workshop, job_id, jobs.resume)
    workshop.supervise(job_id)
    done = read_job(workshop.sessions, job_id)
    assert (done.status, done.attempt, done.step) == (JobStatus.SUCCEEDED, 2, job.step + 2)
    assert workshop.event(job_id, "resumed") == {"step": job.step, "redone_steps": 0}
    event_codes(workshop.sessions, job_id)


def test_a_pause_that_is_taken_back_while_the_trainer_stops_goes_on_at_once(workshop: Workshop, tmp_path: Path):
    go = tmp_path / "go"
    workshop.script(
        [["baseline"], ["steps", 2], ["checkpoint"], ["wait_for_file", str(go)], ["stop_by_itself"]], FINISH
    )
    job_id = workshop.queue()
    workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 2)
    ask(workshop, job_id, jobs.request_pause)
    trainer_heard = "pause_requested"
    workshop.wait_for_event(job_id, trainer_heard)
    wait_until(lambda: "trainer_told_to_pause" in workshop.log("worker.supervisor").read_text(), what="it hears")
    assert ask(workshop, job_id, jobs.resume)
    go.touch()
    workshop.wait_for_status(job_id, JobStatus.QUEUED)
    assert read_job(workshop.sessions, job_id).hinted_at is None
    assert "pause_withdrawn" in event_codes(workshop.sessions, job_id)


def test_a_cancel_beats_a_pause(workshop: Workshop):
    workshop.script(SERVE)
    job_id = workshop.queue()
    workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 2)
    with workshop.sessions.begin() as session:
        job = jobs.get(session, job_id)
        assert job is not None
        jobs.request_pause(session, job)
        jobs.request_cancel(session, job)
    workshop.wait_for_status(job_id, JobStatus.CANCELLED)


def test_a_trainer_that_hangs_is_ended_with_a_diagnosis_and_tried_again(workshop: Workshop):
    workshop.set(watchdog_least_s=0.3, watchdog_factor=2.0)
    workshop.script([["baseline"], ["steps", 2], ["pulse", "generation", 0.01], ["hang"]], FINISH)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason, job.failures) == (JobStatus.QUEUED, StatusReason.TRAINER_HUNG, 1)
    told = read_events(workshop.sessions, job_id)[-1].message
    assert "after step 2, phase generation lasted" in told
    assert "scripted_trainer.py" in told, "the stacks of its threads"
    assert "in hang" in told
    workshop.supervise(job_id)
    assert workshop.status(job_id) is JobStatus.SUCCEEDED


def test_a_trainer_that_never_gives_a_sign_is_ended_after_the_first_deadline(workshop: Workshop):
    workshop.set(watchdog_first_s=1.0)
    workshop.script([["hang"]])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    assert "phase starting_trainer" in read_events(workshop.sessions, job_id)[-1].message


def test_a_slow_phase_within_its_deadline_is_left_alone(workshop: Workshop, tmp_path: Path):
    workshop.set(watchdog_least_s=600.0)
    go = tmp_path / "go"
    workshop.script([["pulse", "generation", 0.01], ["baseline"], ["wait_for_file", str(go)], ["steps", 1], ["finish"]])
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    trainer = trainer_of(supervisor)
    workshop.wait_for_event(job_id, "evaluated")
    wait_until(lambda: (read_job(workshop.sessions, job_id).activity or {}).get("phase") == "generation", what="a beat")
    activity = read_job(workshop.sessions, job_id).activity
    assert activity is not None
    assert (activity["step"], activity["longest_s"], activity["deadline_s"]) == (1, 0.01, 600.0)
    assert is_running(trainer)
    go.touch()
    workshop.wait_for_status(job_id, JobStatus.SUCCEEDED)
    assert read_job(workshop.sessions, job_id).activity is None


def test_a_full_disk_pauses_the_job_with_the_reason_and_what_is_safe(workshop: Workshop):
    full = {
        "reason": "disk_full",
        "code": "disk_full",
        "message": "No space left on device.",
        "fix": "Make room.",
        "pauses": True,
    }
    workshop.script([["baseline"], ["steps", 3], ["checkpoint_and_wait"], ["steps", 1], ["fail", full]], FINISH)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason, job.failures) == (JobStatus.PAUSED, StatusReason.DISK_FULL, 0)
    assert "Step 3 is safe; 1 steps after it will be done again." in read_events(workshop.sessions, job_id)[-1].message
    assert ask(workshop, job_id, jobs.resume)
    workshop.supervise(job_id)
    assert workshop.status(job_id) is JobStatus.SUCCEEDED


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_supervisor_without_room_pauses_its_job_too(number: int):
    failure = Ending.unfit(OSError(number, "full")).failure
    assert failure is not None
    assert (failure.reason, failure.retryable) == (StatusReason.DISK_FULL, False)


def test_a_store_without_room_pauses_it_too():
    failure = Ending.refused(StoreFull("The store has no room.")).failure
    assert failure is not None
    assert (failure.reason, failure.pauses) == (StatusReason.DISK_FULL, True)


def test_a_notice_of_the_cloud_moves_the_job_and_keeps_it_from_this_machine(workshop: Workshop, tmp_path: Path):
    notice = tmp_path / "preempted"
    variables = {"PODIUM_PREEMPTION_SOURCE": "file", "PODIUM_PREEMPTION_FILE": str(notice)}
    workshop.script(SERVE, FINISH)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id, **variables, PODIUM_PREEMPTION_POLL_S="0.1")
    workshop.wait_for_step(job_id, 2)
    notice.write_text("spot instance is reclaimed")
    workshop.wait_for_status(job_id, JobStatus.QUEUED)
    supervisor.wait(10)
    job = read_job(workshop.sessions, job_id)
    assert (job.status_reason, job.preemptions, job.durable_step) == (StatusReason.PREEMPTED, 1, job.step)
    with workshop.sessions.begin() as session:
        jobs.due(session, hint_repeat_s=30)
    doomed = workshop.start_supervisor(job_id, **variables, PODIUM_PREEMPTION_POLL_S="0.1")
    wait_until(lambda: read_job(workshop.sessions, job_id).hinted_at is None, what="another worker can be told")
    assert read_job(workshop.sessions, job_id).attempt == 1, "a machine that goes takes nothing new"
    assert doomed.is_running(), "and its slot takes no other hint"
    notice.unlink()
    assert doomed.wait(30) == 0


def test_a_notice_that_says_when_grants_the_trainer_that_much_time(workshop: Workshop):
    """It ends a step that takes longer than the grace."""
    go = workshop.folder / "go"
    workshop.set(stop_grace_s=0.5)
    workshop.script([["baseline"], ["steps", 1], ["wait_for_file", str(go)], ["serve"]])
    job_id = workshop.queue()
    with running_metadata_server({}) as cloud:
        variables = {"PODIUM_PREEMPTION_SOURCE": "aws", "PODIUM_PREEMPTION_URL": cloud.url}
        supervisor = workshop.start_supervisor(job_id, **variables, PODIUM_PREEMPTION_POLL_S="0.1")
        workshop.wait_for_step(job_id, 1)
        at = datetime.now(UTC) + timedelta(minutes=2)
        cloud.answers["/latest/meta-data/spot/instance-action"] = f'{{"action": "stop", "time": "{at.isoformat()}"}}'
        log = workshop.log("worker.supervisor")
        wait_until(lambda: "trainer_told_to_pause" in log.read_text(), what="the notice is heard")
        with pytest.raises(psutil.TimeoutExpired):
            supervisor.wait(3 * workshop.settings.stop_grace_s)
        go.touch()
        assert supervisor.wait(30) == 0
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.PREEMPTED)
    assert job.durable_step == job.step


def test_a_signal_after_a_notice_leaves_the_trainer_no_more_than_the_grace(workshop: Workshop):
    workshop.set(stop_grace_s=0.5)
    workshop.script([["baseline"], ["steps", 1], ["hang"]])
    job_id = workshop.queue()
    with running_metadata_server({}) as cloud:
        variables = {"PODIUM_PREEMPTION_SOURCE": "aws", "PODIUM_PREEMPTION_URL": cloud.url}
        supervisor = workshop.start_supervisor(job_id, **variables, PODIUM_PREEMPTION_POLL_S="0.1")
        workshop.wait_for_event(job_id, "hanging")
        at = datetime.now(UTC) + timedelta(minutes=2)
        cloud.answers["/latest/meta-data/spot/instance-action"] = f'{{"action": "stop", "time": "{at.isoformat()}"}}'
        log = workshop.log("worker.supervisor")
        wait_until(lambda: "trainer_told_to_pause" in log.read_text(), what="the notice is heard")
        supervisor.terminate()
        assert supervisor.wait(30) == 0
    assert workshop.status(job_id) is JobStatus.QUEUED


@pytest.mark.parametrize("failpoints", ["", "publish.artifacts_put=sleep:2"], ids=["before the end", "after the end"])
def test_a_cancel_that_comes_too_late_takes_nothing_from_a_finished_run(workshop: Workshop, failpoints: str):
    go = workshop.folder / "go"
    workshop.script([["baseline"], ["steps", 2], ["checkpoint"], ["wait_for_file", str(go)], ["finish"]])
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id, PODIUM_FAILPOINTS=failpoints)
    workshop.wait_for_step(job_id, 2)
    run = workshop.settings.runs_dir / job_id / "a0001"
    if failpoints:
        go.touch()
        wait_until((run / "outcome.json").exists, what="the trainer has finished")
    workshop.cancel(job_id)
    go.touch()
    assert supervisor.wait(30) == 0
    job = read_job(workshop.sessions, job_id)
    assert (job.status, job.lease_owner) == (JobStatus.SUCCEEDED, None)
    assert "results.json" in workshop.artifacts(job_id)
    assert event_codes(workshop.sessions, job_id)[-1] == "succeeded"


REPLAYED = [
    ["baseline"],
    ["replay", 1, 0.25],
    ["checkpoint_and_wait"],
    ["replay", 2, 0.5],
    ["replay", 3, 0.75],
    ["die"],
]


@pytest.mark.parametrize(("second", "exact"), [(0.5, True), (0.5000000001, False)])
def test_what_is_done_again_is_compared_with_what_was_recorded(workshop: Workshop, second: float, exact: bool):
    again = [["baseline"], ["replay", 2, second], ["replay", 3, 0.75], ["replay", 4, 1.0], ["finish"]]
    workshop.script(REPLAYED, again)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    workshop.supervise(job_id)
    report = workshop.event(job_id, "resume_audit")
    differences = {} if exact else {"2": {"reward": [0.5, second]}}
    assert report == {
        "steps_compared": 2,
        "steps_equal": 2 if exact else 1,
        "exact": exact,
        "differences": differences,
    }
    assert [attempt.resume_audit for attempt in workshop.attempts(job_id)] == [None, report]
