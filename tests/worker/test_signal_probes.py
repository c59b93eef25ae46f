"""A signal probe under its supervisor: what a job has of leases, retries and wishes, and an ending of its own."""

import signal

import pytest

from core.db import signal_probes
from core.ids import JobId, new_signal_probe_id
from core.signal_report import ProbeSize, SignalReport
from core.status import JobStatus, StatusReason
from tests.factories import REWARD_SOURCE, TENANT, event_codes, read_events, read_job
from tests.worker.workshop import Workshop, is_running, trainer_of

PROBE = [["stage", "probing"], ["finish_probe"]]
NO_SANDBOX = {
    "reason": "grader_failed",
    "code": "sandbox_unavailable",
    "message": "There is no bwrap.",
    "pauses": True,
}


def queue_probe(workshop: Workshop) -> JobId:
    spec = workshop.spec()
    with workshop.sessions.begin() as session:
        job, _ = signal_probes.add(
            session,
            new_signal_probe_id(),
            tenant_id=TENANT,
            spec=spec,
            size=ProbeSize(prompts=16, samples=4),
            method={"type": "grpo"},
            metadata={},
            inline_sources={term.name: REWARD_SOURCE for term in spec.rewards},
        )
    return job.id


def report_of(workshop: Workshop, probe_id: JobId) -> SignalReport | None:
    with workshop.sessions() as session:
        found = signal_probes.get_owned(session, TENANT, probe_id)
        assert found is not None
        report = found[1].report
    return None if report is None else SignalReport.model_validate(report)


def test_a_probe_ends_with_its_report_and_makes_no_artifacts(workshop: Workshop):
    workshop.script(PROBE)
    probe_id = queue_probe(workshop)
    workshop.supervise(probe_id)
    report = report_of(workshop, probe_id)
    assert report is not None
    assert report.silent_groups == 2
    assert workshop.event(probe_id, "probed") == {"prompts": 16, "samples": 4}, "what its process was told"
    assert event_codes(workshop.sessions, probe_id) == ["queued", "claimed", "stage_probing", "probed", "succeeded"]
    assert read_events(workshop.sessions, probe_id)[-1].message == report.sentence
    assert workshop.artifacts(probe_id) == {}
    assert read_job(workshop.sessions, probe_id).results_file is None


def test_a_crash_begins_it_again_and_only_the_last_attempt_reports(workshop: Workshop):
    workshop.script([["stage", "probing"], ["die"]], PROBE)
    probe_id = queue_probe(workshop)
    workshop.supervise(probe_id)
    assert workshop.status(probe_id) is JobStatus.QUEUED
    assert report_of(workshop, probe_id) is None
    workshop.supervise(probe_id)
    job = read_job(workshop.sessions, probe_id)
    assert (job.status, job.attempt, job.failures) == (JobStatus.SUCCEEDED, 2, 1)
    assert report_of(workshop, probe_id) is not None


def test_what_would_pause_a_job_fails_a_probe(workshop: Workshop):
    """Nobody could resume it, and there is nothing to be lost."""
    workshop.script([["fail", NO_SANDBOX]])
    probe_id = queue_probe(workshop)
    workshop.supervise(probe_id)
    job = read_job(workshop.sessions, probe_id)
    assert (job.status, job.status_reason) == (JobStatus.FAILED, StatusReason.GRADER_FAILED)
    assert job.error is not None
    assert job.error["code"] == "sandbox_unavailable"


@pytest.mark.parametrize("how", ["cancel", "preempt"])
def test_a_running_probe_can_be_cancelled_and_moved(workshop: Workshop, how: str):
    workshop.script([["notice", "sampling"], ["wait_until_told"]], PROBE)
    probe_id = queue_probe(workshop)
    supervisor = workshop.start_supervisor(probe_id)
    workshop.wait_for_event(probe_id, "sampling")
    trainer = trainer_of(supervisor)
    if how == "cancel":
        workshop.cancel(probe_id)
    else:
        supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(30)
    assert not is_running(trainer)
    if how == "cancel":
        assert workshop.status(probe_id) is JobStatus.CANCELLED
    else:
        workshop.supervise(probe_id)
        job = read_job(workshop.sessions, probe_id)
        assert (job.status, job.attempt, job.preemptions, job.failures) == (JobStatus.SUCCEEDED, 2, 1, 0)
