"""A create that is sent twice: the key is held by one transaction at a time, and kept with what it created."""

import pytest
from sqlalchemy.exc import IntegrityError

from core.db import idempotency, jobs
from core.ids import TenantId
from tests.factories import TENANT, add_job


def test_a_key_is_held_by_one_transaction_at_a_time(sessions):
    with sessions.begin() as first, sessions.begin() as second:
        assert idempotency.lock(first, TENANT, "k")
        assert not idempotency.lock(second, TENANT, "k"), "in flight"
        assert idempotency.lock(second, TENANT, "other")
        assert idempotency.lock(second, TenantId("tenant-b"), "k"), "keys belong to tenants"


@pytest.mark.parametrize("ended", ["commit", "rollback"])
def test_a_key_is_free_again_when_the_transaction_is_over(sessions, ended):
    with sessions() as first:
        idempotency.lock(first, TENANT, "k")
        getattr(first, ended)()
    with sessions.begin() as second:
        assert idempotency.lock(second, TENANT, "k")


def test_the_first_answer_is_found_by_its_tenant_only(sessions):
    with sessions.begin() as session:
        idempotency.save(session, TENANT, "k", fingerprint="f", status=201, body={"id": "ftjob-1"})
    with sessions() as session:
        found = idempotency.find(session, TENANT, "k")
        assert found is not None
        assert (found.fingerprint, found.status, found.body) == ("f", 201, {"id": "ftjob-1"})
        assert idempotency.find(session, TenantId("tenant-b"), "k") is None


def test_answer_and_creation_exist_together_or_not_at_all(sessions):
    with sessions() as session:
        job_id = add_job(session).id
        idempotency.save(session, TENANT, "k", fingerprint="f", status=201, body={})
        session.rollback()
    with sessions() as session:
        assert idempotency.find(session, TENANT, "k") is None
        assert jobs.get(session, job_id) is None


def test_a_second_answer_for_a_key_is_refused(sessions):
    with sessions.begin() as session:
        idempotency.save(session, TENANT, "k", fingerprint="f", status=201, body={})
    with sessions() as session, pytest.raises(IntegrityError):
        idempotency.save(session, TENANT, "k", fingerprint="g", status=201, body={})
