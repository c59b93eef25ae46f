"""The one door of a job's status, its gapless event log, and the wish to cancel."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from core.db import events, jobs, leases
from core.db.jobs import IllegalTransition
from core.db.models import Job
from core.ids import TenantId
from core.status import TRANSITIONS, JobStatus, Stage, StatusReason
from tests.factories import (
    TENANT,
    add_job,
    claim,
    claimed,
    event_codes,
    expire,
    make_data_ref,
    make_spec,
    put_into,
    queued_job,
    read_events,
    read_job,
)
from tests.polling import wait_until
from tests.threads import race

OPEN = [status for status in JobStatus if not status.is_terminal]
UNHELD = [status for status in OPEN if status is not JobStatus.RUNNING]


def request_cancel(sessions, job_id) -> bool:
    with sessions.begin() as session:
        return jobs.request_cancel(session, jobs.get(session, job_id))


def is_waiting_for_a_lock(sessions) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with sessions() as session:
        return bool(session.scalar(text(query)))


def test_a_new_job_is_queued_and_its_log_begins_with_that(sessions):
    job = read_job(sessions, queued_job(sessions))
    assert (job.status, job.attempt, job.failures, job.preemptions) == (JobStatus.QUEUED, 0, 0, 0)
    assert event_codes(sessions, job.id) == ["queued"]


def test_the_spec_comes_back_as_it_went_in(sessions):
    spec = make_spec(seed=7, suffix="bio-json")
    lease = claimed(sessions, queued_job(sessions, spec=spec))
    assert lease.spec == spec


def test_a_transition_writes_status_and_event_together(sessions):
    job_id = queued_job(sessions)
    with sessions.begin() as session:
        changed = jobs.transition(
            session,
            job_id,
            JobStatus.QUEUED,
            JobStatus.FAILED,
            code="broken",
            message="It broke.",
            level="error",
            reason=StatusReason.INVALID_SPEC,
        )
    job, last = read_job(sessions, job_id), read_events(sessions, job_id)[-1]
    assert changed == 0, "the attempt"
    assert (job.status, job.status_reason) == (JobStatus.FAILED, StatusReason.INVALID_SPEC)
    assert job.finished_at is not None
    assert (last.code, last.level, last.data) == ("broken", "error", {"from": "queued", "to": "failed"})


def test_a_transition_that_is_rolled_back_leaves_neither_status_nor_event(sessions):
    job_id = queued_job(sessions)
    with sessions() as session:
        jobs.transition(session, job_id, JobStatus.QUEUED, JobStatus.FAILED, code="broken", message="It broke.")
        session.rollback()
    assert read_job(sessions, job_id).status is JobStatus.QUEUED
    assert event_codes(sessions, job_id) == ["queued"]


def test_a_transition_from_a_status_that_the_job_no_longer_has_changes_nothing(sessions):
    job_id = queued_job(sessions)
    with sessions.begin() as session:
        changed = jobs.transition(session, job_id, JobStatus.PAUSED, JobStatus.QUEUED, code="resumed", message="Go on.")
    assert changed is None
    assert event_codes(sessions, job_id) == ["queued"]


def test_a_guard_that_does_not_hold_changes_nothing(sessions):
    job_id = queued_job(sessions)
    with sessions.begin() as session:
        changed = jobs.transition(
            session, job_id, JobStatus.QUEUED, JobStatus.FAILED, Job.attempt == 5, code="broken", message="It broke."
        )
    assert changed is None
    assert read_job(sessions, job_id).status is JobStatus.QUEUED


def test_a_change_that_the_table_does_not_know_is_refused(sessions):
    job_id = queued_job(sessions)
    for source, target in itertools.product(JobStatus, JobStatus):
        if target not in TRANSITIONS[source]:
            with sessions() as session, pytest.raises(IllegalTransition):
                jobs.transition(session, job_id, source, target, code="x", message="x")
    assert event_codes(sessions, job_id) == ["queued"]


@pytest.mark.parametrize("target", [JobStatus.QUEUED, JobStatus.PAUSED, JobStatus.SUCCEEDED])
def test_who_leaves_running_leaves_lease_and_stage_behind(sessions, target):
    lease = claimed(sessions)
    assert read_job(sessions, lease.job_id).stage is Stage.PREPARING
    with sessions.begin() as session:
        jobs.transition(session, lease.job_id, JobStatus.RUNNING, target, code="left", message="Left.")
    job = read_job(sessions, lease.job_id)
    assert (job.stage, job.lease_owner, job.lease_expires_at) == (None, None, None)


def test_events_of_eight_threads_have_no_gap_and_no_double(sessions):
    job_id = queued_job(sessions)

    def add_events(number: int) -> None:
        for turn in range(12):
            with sessions() as session:
                events.add(session, job_id, code=f"t{number}", message="x")
                if turn % 4 == 3:
                    session.rollback()
                else:
                    session.commit()

    race(8, add_events)
    assert len(event_codes(sessions, job_id)) == 1 + 8 * 9


def test_an_event_keeps_text_that_postgres_alone_would_refuse(sessions):
    job_id = queued_job(sessions)
    with sessions.begin() as session:
        data = {"completion": "a\0b", "half": "\ud800", "loss": float("nan"), "smile": "\U0001f600", "raw": "\\u0000"}
        events.add(session, job_id, code="odd", message="NUL \0 and half a pair \udfff", data=data)
    last = read_events(sessions, job_id)[-1]
    assert last.message == "NUL \ufffd and half a pair \ufffd"
    assert last.data == {
        "completion": "a\ufffdb",
        "half": "\ufffd",
        "loss": None,
        "smile": "\U0001f600",
        "raw": "\\u0000",
    }


def test_events_are_read_backwards_by_cursor_and_forwards_by_seq(sessions):
    job_id = queued_job(sessions)
    for code in "abc":
        with sessions.begin() as session:
            events.add(session, job_id, code=code, message=code)
    with sessions() as session:
        newest = events.newest_first(session, job_id, after=None, limit=2)
        older = events.newest_first(session, job_id, after=newest[-1].id, limit=2)
        following = events.oldest_first(session, job_id, after_seq=2, limit=10)
    assert [event.code for event in (*newest, *older)] == ["c", "b", "a", "queued"]
    assert [event.code for event in following] == ["b", "c"]


@pytest.mark.parametrize("status", UNHELD)
def test_cancelling_a_job_that_nobody_holds_ends_it_at_once(sessions, status):
    job_id = put_into(sessions, status)
    assert request_cancel(sessions, job_id)
    job = read_job(sessions, job_id)
    assert (job.status, job.status_reason) == (JobStatus.CANCELLED, StatusReason.USER_CANCELLED)
    assert job.finished_at is not None
    assert event_codes(sessions, job_id)[-1] == "cancelled"


def test_cancelling_a_running_job_is_a_wish_for_its_supervisor(sessions):
    lease = claimed(sessions)
    assert request_cancel(sessions, lease.job_id)
    job = read_job(sessions, lease.job_id)
    assert job.status is JobStatus.RUNNING
    assert job.cancel_requested_at is not None
    assert event_codes(sessions, lease.job_id)[-1] == "cancel_requested"


def test_a_second_cancel_of_a_running_job_says_nothing_new(sessions):
    lease = claimed(sessions)
    request_cancel(sessions, lease.job_id)
    first = read_job(sessions, lease.job_id).cancel_requested_at
    assert request_cancel(sessions, lease.job_id)
    assert read_job(sessions, lease.job_id).cancel_requested_at == first
    assert event_codes(sessions, lease.job_id).count("cancel_requested") == 1


@pytest.mark.parametrize("status", [status for status in JobStatus if status.is_terminal])
def test_cancelling_a_finished_job_changes_nothing(sessions, status):
    job_id = put_into(sessions, status)
    before = event_codes(sessions, job_id)
    assert not request_cancel(sessions, job_id)
    assert read_job(sessions, job_id).status is status
    assert event_codes(sessions, job_id) == before


def test_a_cancel_that_read_the_job_before_it_ended_is_told_so(sessions):
    lease = claimed(sessions)
    with sessions.begin() as session:
        seen_running = jobs.get(session, lease.job_id)
        with sessions.begin() as other:
            leases.finish(other, lease, JobStatus.SUCCEEDED, message="Done.")
        assert not jobs.request_cancel(session, seen_running)
    assert event_codes(sessions, lease.job_id)[-1] == "succeeded"


def test_a_cancel_and_a_claim_at_the_same_moment_never_leave_a_wish_unheard(sessions):
    for _ in range(10):
        job_id = queued_job(sessions)
        race(2, lambda number, job_id=job_id: (request_cancel if number else claim)(sessions, job_id))
        job = read_job(sessions, job_id)
        assert job.cancel_requested_at is not None
        assert job.status in (JobStatus.CANCELLED, JobStatus.RUNNING), "a running job's supervisor hears of it"
        event_codes(sessions, job_id)


def test_other_tenants_jobs_are_not_there(sessions):
    job_id = queued_job(sessions)
    with sessions() as session:
        assert jobs.get_owned(session, TENANT, job_id) is not None
        assert jobs.get_owned(session, TenantId("tenant-b"), job_id) is None
        assert jobs.page(session, TenantId("tenant-b"), after=None, limit=10) == []


def test_pages_are_newest_first_and_filtered_by_status_and_metadata(sessions):
    first, second, third = (queued_job(sessions, metadata={"n": str(n), "team": "search"}) for n in range(3))
    claimed(sessions, second)
    with sessions() as session:

        def page(**filters) -> list[str]:
            arguments = {"after": None, "limit": 10} | filters
            return [job.id for job in jobs.page(session, TENANT, **arguments)]

        assert page() == [third, second, first]
        assert page(limit=2) == [third, second]
        assert page(after=second) == [first]
        assert page(status=JobStatus.RUNNING) == [second]
        assert page(metadata={"team": "search", "n": "0"}) == [first]


def test_a_file_is_in_use_until_the_last_job_that_reads_it_is_over(sessions):
    data = make_data_ref()
    lease = claimed(sessions, queued_job(sessions, spec=make_spec(held_out=data)))
    with sessions.begin() as session:
        assert jobs.any_active_using(session, data.file_id)
        leases.finish(session, lease, JobStatus.CANCELLED, message="Stopped.")
        assert not jobs.any_active_using(session, data.file_id)


def test_a_reward_inside_the_spec_is_kept_with_the_job(sessions):
    with sessions.begin() as session:
        job = add_job(session, sources={"exact": "def grade(sample, item): ..."})
        assert jobs.inline_source(session, job.id, "exact") == "def grade(sample, item): ..."
        assert jobs.inline_source(session, job.id, "other") is None


def test_an_expired_lease_does_not_end_a_job_by_itself(sessions):
    lease = claimed(sessions)
    expire(sessions, lease.job_id)
    assert read_job(sessions, lease.job_id).status is JobStatus.RUNNING


def test_a_cancel_that_meets_a_claim_waits_for_it_and_tells_its_supervisor(sessions):
    job_id = queued_job(sessions)
    with ThreadPoolExecutor(1) as pool:
        with sessions.begin() as session:
            leases.claim(session, job_id, owner="w", ttl_s=60, max_failures=3)
            cancelled = pool.submit(request_cancel, sessions, job_id)
            wait_until(lambda: is_waiting_for_a_lock(sessions), what="the cancel waits for the claim")
        assert cancelled.result(30)
    assert read_job(sessions, job_id).status is JobStatus.RUNNING
    assert event_codes(sessions, job_id) == ["queued", "claimed", "cancel_requested"]
