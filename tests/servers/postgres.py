"""A real PostgreSQL for the whole test session; every test that wants one gets a database of its own."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from cli.postgres import running_postgres
from core.ids import new_key_id


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The maintenance database of the session's server; tests use `create_database(postgres_url)`.

    Not in pytest's own folder: each session that starts closes that one to other accounts, such as Postgres's.
    """
    with (
        TemporaryDirectory(prefix="podium-test-") as folder,
        running_postgres(Path(folder) / "data", durable=False) as server,
    ):
        yield server.url()


def create_database(postgres_url: str, *, template: str = "template1") -> str:
    """The URL of a fresh database. `template` names a database that nobody is connected to."""
    name = "test_" + new_key_id().removeprefix("key-")
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    _execute(postgres_url, statement)
    return make_url(postgres_url).set(database=name).render_as_string(hide_password=False)


def drop_database(postgres_url: str, database_url: str) -> None:
    name = make_url(database_url).database
    assert name is not None
    _execute(postgres_url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _execute(postgres_url: str, statement: sql.Composed) -> None:
    url = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
