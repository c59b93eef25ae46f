"""Exports in the ledger: taken under a lease, fenced, tried again with growing pauses, and given up in the end."""

from datetime import timedelta

import pytest
from sqlalchemy import update

from core.db import exports
from core.db.exports import Claim, ClaimLost
from core.db.models import Export, Job, now
from core.errors import ServiceError
from core.settings import ExportTarget
from core.status import JobStatus
from tests.factories import claimed, event_codes, put_into, queued_job, read_events
from worker.exports.target import ExportBroke, ExportFailed

WANDB = {"type": "wandb", "wandb": {"project": "p"}}
TENSORBOARD = {"type": "tensorboard"}
RETRY_S, PATIENCE_S = 10.0, 3600.0


def running_job(sessions, *integrations):
    job_id = queued_job(sessions, integrations=integrations)
    claimed(sessions, job_id)
    return job_id


def claim(sessions, *, ttl_s=60.0):
    with sessions.begin() as session:
        return exports.claim(session, ttl_s=ttl_s)


def fail(sessions, held: Claim, error: ServiceError) -> Export:
    with sessions.begin() as session:
        exports.fail(session, held, error, retry_s=RETRY_S, patience_s=PATIENCE_S)
    return read(sessions, held)


def read(sessions, held: Claim) -> Export:
    with sessions() as session:
        return session.get_one(Export, (held.job_id, held.target))


def change(sessions, held: Claim, **values):
    with sessions.begin() as session:
        session.execute(update(Export).where(Export.job_id == held.job_id).values(values))


def pause_s(sessions, held: Claim) -> float:
    """From now until it is due, to the second."""
    with sessions() as session:
        row = session.get_one(Export, (held.job_id, held.target))
        return round((row.due_at - session.scalar(now())).total_seconds())


def failing(sessions, held: Claim) -> list[tuple[ExportTarget, str | None]]:
    with sessions() as session:
        return [(row.target, row.error_code) for row in exports.failing(session, held.job_id)]


def end(sessions, job_id, *, hours_ago: float):
    with sessions.begin() as session:
        ended = {"status": JobStatus.FAILED, "finished_at": now() - timedelta(hours=hours_ago)}
        session.execute(update(Job).where(Job.id == job_id).values(ended))


def test_each_integration_of_a_job_is_taken_once(sessions):
    job_id = running_job(sessions, WANDB, TENSORBOARD)
    taken = {claim(sessions), claim(sessions), claim(sessions)}
    assert taken == {Claim(job_id, ExportTarget.WANDB, 1), Claim(job_id, ExportTarget.TENSORBOARD, 1), None}


def test_a_job_without_integrations_is_nobodys_business(sessions):
    running_job(sessions)
    assert claim(sessions) is None


@pytest.mark.parametrize("status", list(JobStatus))
def test_what_waits_has_nothing_to_send(sessions, status):
    job_id = put_into(sessions, status)
    with sessions.begin() as session:
        session.add(Export(job_id=job_id, target=ExportTarget.WANDB))
    taken = claim(sessions) is not None
    assert taken is (status is JobStatus.RUNNING or status.is_terminal)


def test_an_exporter_that_died_is_followed_by_another_and_can_write_nothing_more(sessions):
    running_job(sessions, WANDB)
    first = claim(sessions, ttl_s=-1.0)
    second = claim(sessions)
    assert (first.attempt, second.attempt) == (1, 2)
    writes = [
        lambda session: exports.renew(session, first, ttl_s=60.0),
        lambda session: exports.works(session, first, where="W&B"),
        lambda session: exports.leave(session, first),
        lambda session: exports.finish(session, first, where="W&B", last_step=4),
        lambda session: exports.end_without(session, first),
        lambda session: exports.fail(session, first, ExportBroke("x"), retry_s=1, patience_s=1),
        lambda session: exports.put_artifact(
            session, first, name="n", key="k", size_bytes=1, sha256="0" * 64, content_type="text/plain"
        ),
    ]
    for write in writes:
        with pytest.raises(ClaimLost), sessions.begin() as session:
            write(session)
    assert event_codes(sessions, first.job_id) == ["queued", "claimed"]
    assert read(sessions, second).attempt == 2


def test_a_late_exporter_goes_on_while_nobody_else_has_begun(sessions):
    running_job(sessions, WANDB)
    late = claim(sessions, ttl_s=-1.0)
    with sessions.begin() as session:
        exports.renew(session, late, ttl_s=60.0)
    assert claim(sessions) is None


def test_what_is_left_is_due_at_once(sessions):
    running_job(sessions, WANDB)
    held = claim(sessions)
    with sessions.begin() as session:
        exports.leave(session, held)
    assert claim(sessions).attempt == 2


def test_what_is_finished_is_never_taken_again(sessions):
    running_job(sessions, WANDB)
    held = claim(sessions)
    with sessions.begin() as session:
        exports.works(session, held, where="W&B, project p")
        exports.finish(session, held, where="W&B, project p", last_step=4)
    assert claim(sessions) is None
    assert event_codes(sessions, held.job_id)[-2:] == ["export_started", "exported"]
    assert read_events(sessions, held.job_id)[-1].data == {"target": "wandb", "last_step": 4}


def test_pauses_double_up_to_a_quarter_of_an_hour(sessions):
    running_job(sessions, WANDB)
    pauses = []
    for _ in range(8):
        held = claim(sessions)
        fail(sessions, held, ExportFailed("It is away."))
        pauses.append(pause_s(sessions, held))
        assert claim(sessions) is None
        change(sessions, held, due_at=now())
    assert pauses == [10, 20, 40, 80, 160, 320, 640, 900]


def test_a_target_that_works_again_starts_from_the_first_pause(sessions):
    running_job(sessions, WANDB)
    held = claim(sessions)
    assert fail(sessions, held, ExportFailed("It is away.")).failures == 1
    assert failing(sessions, held) == [(ExportTarget.WANDB, "export_failed")]
    change(sessions, held, due_at=now())
    held = claim(sessions)
    with sessions.begin() as session:
        exports.works(session, held, where="W&B")
    row = read(sessions, held)
    assert (row.failures, row.failing_since) == (0, None)
    assert failing(sessions, held) == []


def test_the_owner_hears_once_of_each_kind_of_failure_and_the_job_is_untouched(sessions):
    job_id = running_job(sessions, WANDB)
    for error in (ExportFailed("It is away."), ExportFailed("Still."), ExportBroke("It hung."), ExportBroke("Again.")):
        held = claim(sessions)
        fail(sessions, held, error)
        change(sessions, held, due_at=now())
    warnings = [event for event in read_events(sessions, job_id) if event.level == "warn"]
    assert [event.code for event in warnings] == ["export_failed", "export_broke"]
    assert "the job itself goes on" in warnings[0].message
    assert warnings[0].data["fix"]
    with sessions() as session:
        job = session.get_one(Job, job_id)
        assert (job.status, job.failures, job.attempt) == (JobStatus.RUNNING, 0, 1)


def test_a_job_that_runs_is_never_given_up(sessions):
    running_job(sessions, WANDB)
    held = claim(sessions)
    change(sessions, held, failing_since=now() - timedelta(days=30), failures=900)
    row = fail(sessions, held, ExportFailed("It is away."))
    assert (row.finished_at, pause_s(sessions, held)) == (None, 900)


@pytest.mark.parametrize(
    ("ended_hours_ago", "failing_hours", "given_up"), [(2, 2, True), (2, 0.5, False), (0.5, 2, False)]
)
def test_patience_counts_from_the_jobs_end_and_from_the_first_failure(
    sessions, ended_hours_ago, failing_hours, given_up
):
    job_id = running_job(sessions, WANDB)
    held = claim(sessions)
    end(sessions, job_id, hours_ago=ended_hours_ago)
    change(sessions, held, failing_since=now() - timedelta(hours=failing_hours), failures=3)
    row = fail(sessions, held, ExportFailed("It is away."))
    assert (row.finished_at is not None) is given_up
    assert ("export_given_up" in event_codes(sessions, job_id)) is given_up
