"""Fixtures of every ring: a real Postgres with the real migrations, a folder store, settings that name both."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as property_settings
from sqlalchemy import make_url

from core.db import migrate
from core.db.models import Base
from core.db.session import Sessions, make_sessions
from core.settings import Settings
from tests.servers.postgres import create_database, postgres_url
from tests.servers.seaweedfs import s3_server, s3_settings
from tests.servers.small_disk import small_disk
from tests.servers.valkey import valkey_url

__all__ = ["postgres_url", "s3_server", "s3_settings", "small_disk", "valkey_url"]

TESTS = Path(__file__).parent

collect_ignore = ["vllm"]
"""`podium test --vllm`: they need an environment of their own."""

# A machine that has something else to do proves no property wrong.
property_settings.register_profile("podium", deadline=None, suppress_health_check=[HealthCheck.too_slow])
property_settings.load_profile("podium")

SLOWEST_FIRST = ("chaos", "e2e", "worker")
"""Rings that are begun with, so that in several processes none is left alone with a long file at the end."""

_EMPTY_EVERY_TABLE = "; ".join(f"DELETE FROM {table}" for table in reversed(Base.metadata.sorted_tables))
"""Several times faster than TRUNCATE on tables this small, and ten times faster than a database for each test."""
_END_OTHER_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_place_of_ring)


@pytest.fixture(scope="session")
def ledger_url(postgres_url: str) -> str:
    """A database with the newest schema; tests use `database_url`."""
    url = create_database(postgres_url)
    migrate.upgrade(url)
    return url


@pytest.fixture(scope="session")
def ledger_cleaner(ledger_url: str) -> Iterator[psycopg.Connection]:
    url = make_url(ledger_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def database_url(ledger_url: str, ledger_cleaner: psycopg.Connection) -> Iterator[str]:
    """A migrated ledger without rows. Who is still connected at the end of the test is thrown out."""
    yield ledger_url
    ledger_cleaner.execute(_END_OTHER_CONNECTIONS)
    ledger_cleaner.execute(_EMPTY_EVERY_TABLE)


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


def _place_of_ring(item: pytest.Item) -> int:
    ring = item.path.relative_to(TESTS).parts[0]
    return SLOWEST_FIRST.index(ring) if ring in SLOWEST_FIRST else len(SLOWEST_FIRST)
