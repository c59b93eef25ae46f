"""The wish to pause, what becomes of it, and the way back into the queue."""

import pytest

from core.db import jobs, leases
from core.status import JobStatus, StatusReason
from tests.factories import claim, claimed, event_codes, expire, put_into, queued_job, read_events, read_job
from tests.threads import race

ENDED = [status for status in JobStatus if status.is_terminal]


def request_pause(sessions, job_id) -> bool:
    with sessions.begin() as session:
        return jobs.request_pause(session, jobs.get(session, job_id))


def resume(sessions, job_id) -> bool:
    with sessions.begin() as session:
        return jobs.resume(session, jobs.get(session, job_id))


def request_cancel(sessions, job_id) -> bool:
    with sessions.begin() as session:
        return jobs.request_cancel(session, jobs.get(session, job_id))


def pause_held(sessions, lease, *, reason=StatusReason.USER_PAUSED) -> None:
    """As the supervisor does once its trainer has saved."""
    with sessions.begin() as session:
        leases.pause(session, lease, reason=reason, message="Step 2 is safe.", data={"durable_step": 2})


def paused(sessions) -> str:
    job_id = queued_job(sessions)
    request_pause(sessions, job_id)
    return job_id


def due(sessions) -> list[str]:
    with sessions.begin() as session:
        return list(jobs.due(session, hint_repeat_s=60))


def test_pausing_a_queued_job_takes_it_out_of_the_queue_at_once(sessions):
    job_id = queued_job(sessions)
    assert request_pause(sessions, job_id)
    job, last = read_job(sessions, job_id), read_events(sessions, job_id)[-1]
    assert (job.status, job.status_reason) == (JobStatus.PAUSED, StatusReason.USER_PAUSED)
    assert job.pause_requested_at is not None
    assert job.finished_at is None
    assert (last.code, last.data) == ("paused", {"from": "queued", "to": "paused", "durable_step": 0})
    assert claim(sessions, job_id) is None
    assert due(sessions) == []


def test_pausing_a_running_job_is_a_wish_that_its_supervisor_hears(sessions):
    lease = claimed(sessions)
    assert request_pause(sessions, lease.job_id)
    assert read_job(sessions, lease.job_id).status is JobStatus.RUNNING
    with sessions.begin() as session:
        assert leases.renew(session, lease, ttl_s=60) == leases.Wishes(cancel=False, pause=True)
    assert event_codes(sessions, lease.job_id)[-1] == "pause_requested"


@pytest.mark.parametrize("start", [paused, lambda sessions: claimed(sessions).job_id], ids=["paused", "running"])
def test_a_second_pause_says_nothing_new(sessions, start):
    job_id = start(sessions)
    assert request_pause(sessions, job_id)
    before, codes = read_job(sessions, job_id), event_codes(sessions, job_id)
    assert request_pause(sessions, job_id)
    after = read_job(sessions, job_id)
    assert (after.status, after.pause_requested_at) == (before.status, before.pause_requested_at)
    assert event_codes(sessions, job_id) == codes


@pytest.mark.parametrize("ask", [request_pause, resume])
@pytest.mark.parametrize("status", ENDED)
def test_a_job_that_has_ended_is_neither_paused_nor_resumed(sessions, status, ask):
    job_id = put_into(sessions, status)
    before = event_codes(sessions, job_id)
    assert not ask(sessions, job_id)
    assert read_job(sessions, job_id).status is status
    assert event_codes(sessions, job_id) == before


def test_a_pause_that_read_the_job_before_it_ended_is_told_so(sessions):
    lease = claimed(sessions)
    with sessions.begin() as session:
        seen_running = jobs.get(session, lease.job_id)
        with sessions.begin() as other:
            leases.finish(other, lease, JobStatus.SUCCEEDED, message="Done.")
        assert not jobs.request_pause(session, seen_running)
    assert event_codes(sessions, lease.job_id)[-1] == "succeeded"


def test_a_resumed_job_is_queued_and_due_at_once(sessions):
    lease = claimed(sessions)
    due(sessions)
    pause_held(sessions, lease)
    assert resume(sessions, lease.job_id)
    job = read_job(sessions, lease.job_id)
    assert (job.status, job.status_reason, job.pause_requested_at) == (JobStatus.QUEUED, None, None)
    assert due(sessions) == [lease.job_id]
    assert event_codes(sessions, lease.job_id) == ["queued", "claimed", "paused", "resume_requested"]
    again = claimed(sessions, lease.job_id)
    assert again.attempt == 2
    with sessions.begin() as session:
        assert not leases.renew(session, again, ttl_s=60).pause, "the old wish is not heard again"


@pytest.mark.parametrize("status", [JobStatus.QUEUED, JobStatus.RUNNING])
def test_a_job_that_nobody_wants_paused_is_not_resumed(sessions, status):
    job_id = put_into(sessions, status)
    before = event_codes(sessions, job_id)
    assert not resume(sessions, job_id)
    assert event_codes(sessions, job_id) == before


def test_a_pause_that_has_not_taken_effect_is_taken_back(sessions):
    lease = claimed(sessions)
    request_pause(sessions, lease.job_id)
    assert resume(sessions, lease.job_id)
    job = read_job(sessions, lease.job_id)
    assert (job.status, job.pause_requested_at) == (JobStatus.RUNNING, None)
    assert event_codes(sessions, lease.job_id)[-1] == "pause_withdrawn"
    assert not resume(sessions, lease.job_id), "once"


@pytest.mark.parametrize("held", [False, True])
def test_a_paused_job_is_cancelled_at_once(sessions, held):
    lease = claimed(sessions)
    if held:
        pause_held(sessions, lease)
    job_id = lease.job_id if held else paused(sessions)
    assert request_cancel(sessions, job_id)
    job = read_job(sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.CANCELLED, StatusReason.USER_CANCELLED)
    assert job.finished_at is not None
    assert not resume(sessions, job_id)


def test_a_worker_that_goes_away_with_a_pause_wished_leaves_the_job_paused(sessions):
    lease = claimed(sessions)
    request_pause(sessions, lease.job_id)
    with sessions.begin() as session:
        leases.release(session, lease, reason=StatusReason.PREEMPTED, message="Told to go.")
    job = read_job(sessions, lease.job_id)
    assert (job.status, job.status_reason) == (JobStatus.PAUSED, StatusReason.USER_PAUSED)
    assert event_codes(sessions, lease.job_id)[-2:] == ["preempted", "paused"]


def test_a_worker_that_dies_with_a_pause_wished_leaves_the_job_paused_even_over_budget(sessions):
    lease = claimed(sessions)
    request_pause(sessions, lease.job_id)
    expire(sessions, lease.job_id)
    assert claim(sessions, lease.job_id, max_failures=1) is None
    assert read_job(sessions, lease.job_id).status is JobStatus.PAUSED
    assert event_codes(sessions, lease.job_id)[-2:] == ["worker_lost", "paused"]


def test_a_cancel_wins_over_a_pause_however_they_meet(sessions):
    lease = claimed(sessions)
    request_pause(sessions, lease.job_id)
    request_cancel(sessions, lease.job_id)
    pause_held(sessions, lease)
    assert read_job(sessions, lease.job_id).status is JobStatus.CANCELLED
    assert event_codes(sessions, lease.job_id)[-2:] == ["paused", "cancelled"]


def test_a_job_that_its_worker_paused_says_so_until_it_is_resumed(sessions):
    lease = claimed(sessions)
    pause_held(sessions, lease, reason=StatusReason.DISK_FULL)
    job = read_job(sessions, lease.job_id)
    assert (job.status, job.status_reason) == (JobStatus.PAUSED, StatusReason.DISK_FULL)
    assert job.pause_requested_at is not None
    assert resume(sessions, lease.job_id)


def test_a_pause_and_a_claim_at_the_same_moment_never_leave_a_wish_unheard(sessions):
    for _ in range(10):
        job_id = queued_job(sessions)
        race(2, lambda number, job_id=job_id: (request_pause if number else claim)(sessions, job_id))
        job = read_job(sessions, job_id)
        assert job.pause_requested_at is not None
        assert job.status in (JobStatus.PAUSED, JobStatus.RUNNING), "a running job's supervisor hears of it"
        event_codes(sessions, job_id)


def test_two_resumes_at_the_same_moment_queue_the_job_once(sessions):
    for _ in range(5):
        job_id = paused(sessions)
        assert sorted(race(2, lambda _, job_id=job_id: resume(sessions, job_id))) == [False, True]
        assert event_codes(sessions, job_id).count("resume_requested") == 1
