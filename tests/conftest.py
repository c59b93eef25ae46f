"""Fixtures of every ring: a real Postgres with the real migrations, a folder store, settings that name both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.db import migrate
from core.db.session import Sessions, make_sessions
from core.settings import Settings
from tests.servers.postgres import create_database, drop_database, postgres_url
from tests.servers.seaweedfs import s3_server
from tests.servers.valkey import valkey_url

__all__ = ["postgres_url", "s3_server", "valkey_url"]


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> str:
    """Name of a database with the newest schema and no rows; tests start from a copy of it."""
    url = create_database(postgres_url)
    migrate.upgrade(url)
    return url.rsplit("/", 1)[1].split("?")[0]


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """A fresh, migrated, empty ledger for one test."""
    url = create_database(postgres_url, template=migrated_template)
    yield url
    drop_database(postgres_url, url)


@pytest.fixture
def sessions(database_url: str) -> Iterator[Sessions]:
    sessions = make_sessions(database_url)
    yield sessions
    sessions.kw["bind"].dispose()


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        _env_file=None,
        database_url=database_url,
        store_url=f"file://{tmp_path / 'store'}",
        runs_dir=tmp_path / "runs",
    )
