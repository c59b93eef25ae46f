"""Signal probes are rows of `jobs`: leased and cancelled like jobs, and never taken for one."""

import pytest
from alembic import command
from sqlalchemy import create_engine, text

from core.db import jobs, migrate, signal_probes
from core.db.leases import LeaseLost
from core.db.models import Job
from core.ids import TenantId
from core.status import JobKind, JobStatus
from tests.factories import (
    PROBE_SIZE,
    TENANT,
    claimed,
    event_codes,
    expire,
    make_spec,
    queued_job,
    queued_probe,
    read_job,
)
from tests.servers.postgres import create_database, drop_database
from tests.signal_reports import ALWAYS, MIXED, make_report
from worker.publisher import publish_report


def test_a_job_is_of_the_kind_that_trains_and_a_probe_is_not(sessions):
    assert read_job(sessions, queued_job(sessions)).kind is JobKind.GRPO
    probe_id = queued_probe(sessions)
    assert probe_id.startswith("sigprobe-")
    assert read_job(sessions, probe_id).kind is JobKind.SIGNAL_PROBE
    assert event_codes(sessions, probe_id) == ["queued"]


def test_neither_is_found_where_the_other_is_asked_for(sessions):
    job_id, probe_id = queued_job(sessions), queued_probe(sessions)
    with sessions() as session:
        assert jobs.get_owned(session, TENANT, probe_id) is None
        assert signal_probes.get_owned(session, TENANT, job_id) is None
        assert [job.id for job in jobs.page(session, TENANT, after=None, limit=10)] == [job_id]
        listed = signal_probes.page(session, TENANT, after=None, limit=10, status=None)
        assert [(job.id, one.prompts, one.samples) for job, one in listed] == [(probe_id, 16, 4)]


def test_a_probe_belongs_to_its_tenant(sessions):
    probe_id = queued_probe(sessions)
    with sessions() as session:
        assert signal_probes.get_owned(session, TenantId("tenant-b"), probe_id) is None
        assert signal_probes.page(session, TenantId("tenant-b"), after=None, limit=10, status=None) == []


def test_probes_are_listed_newest_first_by_status_and_page(sessions):
    first, second, third = (queued_probe(sessions) for _ in range(3))
    claimed(sessions, second)

    def listed(**changes):
        with sessions() as session:
            found = signal_probes.page(session, TENANT, **({"after": None, "limit": 10, "status": None} | changes))
            return [job.id for job, _ in found]

    assert listed() == [third, second, first]
    assert listed(limit=1, after=third) == [second]
    assert listed(status=JobStatus.QUEUED) == [third, first]


def test_workers_are_told_of_both_kinds_in_the_order_in_which_they_came(sessions):
    """By time: by id, every job would stand before every probe."""
    first, second, third = queued_probe(sessions), queued_job(sessions), queued_probe(sessions)
    with sessions.begin() as session:
        assert [jobs.queued_before(session, session.get(Job, one)) for one in (first, second, third)] == [0, 1, 2]
        assert list(jobs.due(session, hint_repeat_s=60, limit=2)) == [first, second]
    with sessions.begin() as session:
        assert list(jobs.due(session, hint_repeat_s=60, limit=2)) == [third]


def test_a_lease_says_what_it_is_for(sessions):
    assert claimed(sessions, queued_job(sessions)).kind is JobKind.GRPO
    lease = claimed(sessions, queued_probe(sessions))
    assert lease.kind is JobKind.SIGNAL_PROBE
    with sessions() as session:
        assert signal_probes.size_of(session, lease.job_id) == PROBE_SIZE


def test_a_report_is_written_under_the_lease_and_never_by_an_attempt_that_lost_it(sessions):
    lease, report = claimed(sessions, queued_probe(sessions)), make_report(ALWAYS, MIXED)
    expire(sessions, lease.job_id)
    later = claimed(sessions, lease.job_id)
    with pytest.raises(LeaseLost):
        publish_report(sessions, lease, report)
    publish_report(sessions, later, report)
    with sessions() as session:
        found = signal_probes.get_owned(session, TENANT, lease.job_id)
        assert found is not None
        assert found[1].report == report.model_dump(mode="json")


def test_a_queued_probe_is_cancelled_at_once(sessions):
    probe_id = queued_probe(sessions)
    with sessions.begin() as session:
        jobs.request_cancel(session, jobs.get(session, probe_id))
    assert read_job(sessions, probe_id).status is JobStatus.CANCELLED


def test_a_file_is_in_use_while_a_probe_needs_it(sessions):
    spec = make_spec()
    queued_probe(sessions, spec=spec)
    with sessions() as session:
        assert jobs.any_active_using(session, spec.training.file_id)


def test_the_way_back_takes_the_probes_along_and_leaves_the_jobs(postgres_url):
    """Without its kind a probe would be a job."""
    url = create_database(postgres_url)
    engine = create_engine(url)
    try:
        migrate.upgrade(url)
        with engine.begin() as connection:
            for number, kind in enumerate(("grpo", "signal_probe")):
                connection.execute(text(_JOB), {"id": f"job-{number}", "kind": kind})
            connection.execute(text("INSERT INTO signal_probes VALUES ('job-1', 4, 4, NULL)"))
            connection.execute(text("INSERT INTO job_attempts (job_id, attempt, owner) VALUES ('job-1', 1, 'w')"))
        command.downgrade(migrate.alembic_config(url), "0003")
        with engine.begin() as connection:
            assert connection.execute(text("SELECT id FROM jobs")).scalars().all() == ["job-0"]
        migrate.upgrade(url)
        with engine.begin() as connection:
            assert connection.execute(text("SELECT kind FROM jobs")).scalars().all() == ["grpo"]
    finally:
        engine.dispose()
        drop_database(postgres_url, url)


_JOB = """
INSERT INTO jobs (id, kind, tenant_id, status, model, seed, metadata, method, spec, training_file)
VALUES (:id, :kind, 't', 'queued', 'm', 1, '{}', '{}', '{}', 'file-1')
"""
