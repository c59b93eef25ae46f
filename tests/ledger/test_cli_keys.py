"""`podium migrate` and `podium keys` on a real ledger."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from cli.main import app
from core.db import api_keys
from core.db.session import Sessions
from core.settings import get_settings
from tests.servers.postgres import create_database, drop_database


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """Point the commands at a database."""

    def point_at(database_url: str) -> None:
        monkeypatch.setenv("PODIUM_DATABASE_URL", database_url)
        get_settings.cache_clear()

    yield point_at
    get_settings.cache_clear()


def podium(*arguments: str):
    return CliRunner().invoke(app, arguments)


def secrets_in(output: str) -> list[str]:
    return [word for word in output.split() if word.startswith(api_keys.PREFIX)]


def test_migrate_fills_an_empty_database_and_makes_a_named_key_once(use, postgres_url):
    url = create_database(postgres_url)
    use(url)
    first = podium("migrate", "--create-key", "operator")
    second = podium("migrate", "--create-key", "operator")
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert len(secrets_in(first.output)) == 1
    assert secrets_in(second.output) == []
    drop_database(postgres_url, url)


def test_the_printed_secret_is_the_key_until_it_is_revoked(use, database_url, sessions: Sessions):
    use(database_url)
    made = podium("keys", "create", "laptop", "--tenant", "team-a")
    key_id, (secret,) = made.output.split()[0], secrets_in(made.output)
    with sessions() as session:
        key = api_keys.find(session, secret)
        assert key is not None
        assert (key.id, key.tenant_id) == (key_id, "team-a")

    assert podium("keys", "revoke", key_id).exit_code == 0
    with sessions() as session:
        assert api_keys.find(session, secret) is None
    listed = podium("keys", "list").output
    assert key_id in listed
    assert secret not in listed


def test_revoking_an_unknown_key_is_an_error_with_a_fix(use, database_url):
    use(database_url)
    result = podium("keys", "revoke", "key-none")
    assert result.exit_code == 1
    assert "podium keys list" in result.stderr
