"""One worker at a time: claims, renewals, fencing, and what becomes of a job whose worker is gone."""

import pytest
from sqlalchemy import text

from core.db import jobs, leases, progress
from core.db.leases import Lease, LeaseLost
from core.db.session import LEDGER_AWAY
from core.spec import ResourcesSpec
from core.status import JobStatus, StatusReason
from tests.factories import (
    claim,
    claimed,
    event_codes,
    expire,
    make_spec,
    put_into,
    queued_job,
    read_events,
    read_job,
)
from tests.threads import race


def release(sessions, lease: Lease, reason: StatusReason = StatusReason.PREEMPTED, **values) -> None:
    with sessions.begin() as session:
        leases.release(session, lease, reason=reason, message="Back to the queue.", **values)


def finish(sessions, lease: Lease, status: JobStatus = JobStatus.SUCCEEDED) -> None:
    with sessions.begin() as session:
        leases.finish(session, lease, status, message="Over.")


def renew(sessions, lease: Lease, ttl_s: float = 60):
    with sessions.begin() as session:
        return leases.renew(session, lease, ttl_s=ttl_s)


def hold(sessions, lease: Lease) -> None:
    with sessions.begin() as session:
        leases.hold(session, lease)


def cancel(sessions, job_id) -> None:
    with sessions.begin() as session:
        jobs.request_cancel(session, jobs.get(session, job_id))


def attempts(sessions, job_id):
    with sessions() as session:
        return progress.attempts(session, job_id)


def test_a_claim_makes_the_job_run_under_the_next_attempt(sessions):
    lease = claimed(sessions, owner="gpu-7")
    job = read_job(sessions, lease.job_id)
    assert (job.status, job.attempt, job.lease_owner) == (JobStatus.RUNNING, 1, "gpu-7")
    assert job.started_at is not None
    assert [(a.attempt, a.owner, a.ended) for a in attempts(sessions, lease.job_id)] == [(1, "gpu-7", None)]
    assert event_codes(sessions, lease.job_id) == ["queued", "claimed"]


def test_of_sixteen_claims_at_once_exactly_one_wins(sessions):
    job_id = queued_job(sessions)
    won = [lease for lease in race(16, lambda number: claim(sessions, job_id, owner=f"w{number}")) if lease]
    assert [lease.attempt for lease in won] == [1]
    assert event_codes(sessions, job_id) == ["queued", "claimed"]


def test_of_sixteen_claims_of_a_lost_job_exactly_one_wins(sessions):
    lost = claimed(sessions)
    expire(sessions, lost.job_id)
    won = [lease for lease in race(16, lambda _: claim(sessions, lost.job_id)) if lease]
    assert [lease.attempt for lease in won] == [2]
    assert read_job(sessions, lost.job_id).failures == 1
    assert event_codes(sessions, lost.job_id) == ["queued", "claimed", "worker_lost", "claimed"]


def test_a_second_claim_gets_nothing(sessions):
    lease = claimed(sessions)
    assert claim(sessions, lease.job_id) is None
    assert read_job(sessions, lease.job_id).attempt == 1


@pytest.mark.parametrize("status", [s for s in JobStatus if s not in (JobStatus.QUEUED, JobStatus.RUNNING)])
def test_only_queued_and_lost_jobs_can_be_claimed(sessions, status):
    assert claim(sessions, put_into(sessions, status)) is None


def test_a_job_that_is_not_there_cannot_be_claimed(sessions):
    assert claim(sessions, "ftjob-0") is None


def test_a_worker_leaves_a_job_that_wants_more_gpus_than_it_has(sessions):
    job_id = queued_job(sessions, spec=make_spec(resources=ResourcesSpec(gpus=4)))
    assert claim(sessions, job_id, gpus=3) is None
    assert (read_job(sessions, job_id).status, event_codes(sessions, job_id)) == (JobStatus.QUEUED, ["queued"])
    assert claimed(sessions, job_id, gpus=4).attempt == 1


def test_a_lost_job_waits_for_a_worker_with_its_gpus(sessions):
    job_id = queued_job(sessions, spec=make_spec(resources=ResourcesSpec(gpus=2)))
    claimed(sessions, job_id, gpus=2)
    expire(sessions, job_id)
    assert claim(sessions, job_id) is None
    assert (read_job(sessions, job_id).status, read_job(sessions, job_id).failures) == (JobStatus.QUEUED, 1)
    assert claimed(sessions, job_id, gpus=2).attempt == 2


def test_a_claim_waits_for_a_short_write_instead_of_giving_the_job_up(sessions):
    job_id = queued_job(sessions)
    with sessions.begin() as session:
        session.execute(text("SELECT 1 FROM jobs WHERE id = :id FOR UPDATE"), {"id": job_id})
        with sessions() as other:
            other.execute(text("SET LOCAL lock_timeout = '10ms'"))
            with pytest.raises(Exception, match="lock timeout"):
                leases.claim(other, job_id, owner="w", ttl_s=60, max_failures=3)
    assert claim(sessions, job_id) is not None


def test_a_frozen_workers_transaction_cannot_keep_its_job_from_others(sessions):
    lease = claimed(sessions)
    with sessions() as frozen:
        leases.hold(frozen, lease)
        frozen.execute(text("UPDATE jobs SET lease_expires_at = clock_timestamp() - interval '1 second'"))
        assert claim(sessions, lease.job_id) is None, "it waited, and the frozen write did not count"
        with pytest.raises(LEDGER_AWAY):
            frozen.execute(text("SELECT 1"))
    expire(sessions, lease.job_id)
    assert claimed(sessions, lease.job_id).attempt == 2


def test_an_expired_lease_is_a_failure_and_the_job_is_taken_over(sessions):
    first = claimed(sessions, owner="dead")
    expire(sessions, first.job_id)
    second = claimed(sessions, first.job_id, owner="alive")
    job = read_job(sessions, first.job_id)
    assert (second.attempt, job.attempt, job.failures, job.preemptions) == (2, 2, 1, 0)
    assert (job.status, job.status_reason, job.lease_owner) == (JobStatus.RUNNING, None, "alive")
    assert [(a.attempt, a.ended) for a in attempts(sessions, job.id)] == [(1, "worker_lost"), (2, None)]


def test_a_lost_attempt_ended_when_its_lease_did_not_when_somebody_noticed(sessions):
    first = claimed(sessions)
    with sessions.begin() as session:
        session.execute(text("UPDATE job_attempts SET started_at = clock_timestamp() - interval '3 hours'"))
        session.execute(text("UPDATE jobs SET lease_expires_at = clock_timestamp() - interval '2 hours'"))
    second = claimed(sessions, first.job_id)
    finish(sessions, second)
    with sessions() as session:
        assert progress.held_seconds(session, first.job_id) == pytest.approx(3600, abs=60)


def test_the_crash_budget_ends_the_job_with_an_error(sessions):
    job_id = queued_job(sessions)
    for _ in range(2):
        claimed(sessions, job_id, max_failures=2)
        expire(sessions, job_id)
    assert claim(sessions, job_id, max_failures=2) is None
    job = read_job(sessions, job_id)
    assert (job.status, job.status_reason, job.failures) == (JobStatus.FAILED, StatusReason.WORKER_LOST, 2)
    assert job.error is not None
    assert job.error["code"] == "worker_lost"
    assert "failure 2 of the 2" in job.error["message"]
    assert [a.ended for a in attempts(sessions, job_id)] == ["worker_lost", "worker_lost"]


def test_renewing_prolongs_the_lease(sessions):
    lease = claimed(sessions, ttl_s=5)
    before = read_job(sessions, lease.job_id).lease_expires_at
    renew(sessions, lease, ttl_s=500)
    after = read_job(sessions, lease.job_id).lease_expires_at
    assert before is not None
    assert after is not None
    assert (after - before).total_seconds() > 400


def test_a_renewal_hears_the_wish_to_cancel(sessions):
    lease = claimed(sessions)
    assert not renew(sessions, lease).cancel
    cancel(sessions, lease.job_id)
    assert renew(sessions, lease).cancel


@pytest.mark.parametrize("write", [renew, hold, release, finish])
def test_an_expired_lease_allows_nothing(sessions, write):
    lease = claimed(sessions)
    expire(sessions, lease.job_id)
    with pytest.raises(LeaseLost):
        write(sessions, lease)
    assert event_codes(sessions, lease.job_id) == ["queued", "claimed"]


@pytest.mark.parametrize("write", [renew, hold, release, finish])
def test_a_stale_attempt_can_write_nothing(sessions, write):
    stale = claimed(sessions)
    expire(sessions, stale.job_id)
    current = claimed(sessions, stale.job_id)
    before = event_codes(sessions, stale.job_id)
    with pytest.raises(LeaseLost):
        write(sessions, stale)
    assert event_codes(sessions, stale.job_id) == before
    renew(sessions, current)


@pytest.mark.parametrize("write", [renew, hold, release, finish])
def test_after_the_end_nothing_is_held(sessions, write):
    lease = claimed(sessions)
    finish(sessions, lease)
    with pytest.raises(LeaseLost):
        write(sessions, lease)
    assert read_job(sessions, lease.job_id).status is JobStatus.SUCCEEDED


def test_a_claim_waits_for_the_write_of_the_attempt_before(sessions):
    """Writes of attempt n come before those of n + 1: `hold` keeps the row until the commit."""
    first = claimed(sessions)
    with sessions.begin() as session:
        leases.hold(session, first)
        session.execute(text("UPDATE jobs SET lease_expires_at = clock_timestamp() - interval '1 second'"))
        with sessions() as other:
            other.execute(text("SET LOCAL lock_timeout = '10ms'"))
            with pytest.raises(Exception, match="lock timeout"):
                leases.claim(other, first.job_id, owner="w", ttl_s=60, max_failures=3)
    assert claimed(sessions, first.job_id).attempt == 2


def test_a_released_job_can_be_claimed_at_once(sessions):
    first = claimed(sessions)
    release(sessions, first)
    job = read_job(sessions, first.job_id)
    assert (job.status, job.status_reason) == (JobStatus.QUEUED, StatusReason.PREEMPTED)
    second = claimed(sessions, first.job_id)
    assert second.attempt == 2
    assert read_job(sessions, first.job_id).failures == 0, "a preemption is nobody's fault"
    assert event_codes(sessions, first.job_id) == ["queued", "claimed", "preempted", "claimed"]


def test_a_worker_is_told_of_a_released_job_at_once_only_where_that_is_asked_for(sessions):
    def due() -> list:
        with sessions.begin() as session:
            return list(jobs.due(session, hint_repeat_s=30))

    job_id = queued_job(sessions)
    assert due() == [job_id]
    release(sessions, claimed(sessions, job_id), StatusReason.TRAINER_CRASHED)
    assert due() == []
    release(sessions, claimed(sessions, job_id), StatusReason.PREEMPTED, hinted_at=None)
    assert due() == [job_id]


def test_started_at_is_the_first_attempts(sessions):
    first = claimed(sessions)
    started_at = read_job(sessions, first.job_id).started_at
    release(sessions, first)
    claimed(sessions, first.job_id)
    assert read_job(sessions, first.job_id).started_at == started_at


def test_a_job_cancelled_before_the_claim_never_runs(sessions):
    job_id = queued_job(sessions)
    cancel(sessions, job_id)
    assert claim(sessions, job_id) is None
    assert read_job(sessions, job_id).attempt == 0


def test_a_cancel_that_a_leaving_worker_did_not_hear_takes_effect_with_the_release(sessions):
    lease = claimed(sessions)
    cancel(sessions, lease.job_id)
    release(sessions, lease)
    assert read_job(sessions, lease.job_id).status is JobStatus.CANCELLED
    assert event_codes(sessions, lease.job_id)[-2:] == ["preempted", "cancelled"]


@pytest.mark.parametrize("max_failures", [3, 1])
def test_a_cancelled_job_whose_worker_died_is_cancelled_not_run_again(sessions, max_failures):
    lease = claimed(sessions)
    cancel(sessions, lease.job_id)
    expire(sessions, lease.job_id)
    assert claim(sessions, lease.job_id, max_failures=max_failures) is None
    assert read_job(sessions, lease.job_id).status is JobStatus.CANCELLED
    assert event_codes(sessions, lease.job_id)[-3:] == ["cancel_requested", "worker_lost", "cancelled"]


def test_a_finish_keeps_the_error_and_closes_the_attempt(sessions):
    lease = claimed(sessions)
    error = {"code": "out_of_memory", "message": "CUDA out of memory.", "param": None, "fix": "Use a larger GPU."}
    with sessions.begin() as session:
        leases.finish(
            session,
            lease,
            JobStatus.FAILED,
            message="CUDA out of memory.",
            reason=StatusReason.OUT_OF_MEMORY,
            error=error,
        )
    job, last = read_job(sessions, lease.job_id), read_events(sessions, lease.job_id)[-1]
    assert (job.status, job.error, job.lease_expires_at) == (JobStatus.FAILED, error, None)
    assert (last.code, last.level) == ("failed", "error")
    (attempt,) = attempts(sessions, lease.job_id)
    assert attempt.ended == "out_of_memory"
    assert attempt.ended_at is not None
