"""API keys: shown once, stored as a digest, gone when revoked."""

from sqlalchemy import select

from core.db import api_keys
from core.db.models import ApiKey
from tests.factories import TENANT


def test_a_key_is_found_by_its_secret_only(sessions):
    with sessions.begin() as session:
        key, secret = api_keys.create(session, tenant_id=TENANT, name="laptop")
        found = api_keys.find(session, secret)
        assert found is not None
        assert (found.id, found.tenant_id) == (key.id, TENANT)
        assert api_keys.find(session, secret + "x") is None
        assert api_keys.find(session, key.id) is None


def test_the_secret_is_random_and_nowhere_in_the_ledger(sessions):
    with sessions.begin() as session:
        secrets = [api_keys.create(session, tenant_id=TENANT, name="laptop")[1] for _ in range(3)]
        rows = [repr(vars(row)) for row in session.scalars(select(ApiKey))]
    assert len(set(secrets)) == 3
    assert all(secret.startswith("pk_") and len(secret) > 40 for secret in secrets)
    assert not any(secret.removeprefix("pk_") in row for secret in secrets for row in rows)


def test_a_revoked_key_opens_nothing_and_is_revoked_once(sessions):
    with sessions.begin() as session:
        key, secret = api_keys.create(session, tenant_id=TENANT, name="laptop")
        assert api_keys.revoke(session, key.id)
        assert not api_keys.revoke(session, key.id)
        assert api_keys.find(session, secret) is None


def test_revoking_what_is_not_there_says_so(sessions):
    with sessions.begin() as session:
        assert not api_keys.revoke(session, "key-0")


def test_keys_are_listed_in_order_of_making(sessions):
    with sessions.begin() as session:
        made = [api_keys.create(session, tenant_id=TENANT, name=name)[0].id for name in "abc"]
        assert [key.id for key in api_keys.list_all(session)] == made
