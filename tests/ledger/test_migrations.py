"""The real migrations on a real server: from nothing, back to nothing, and by two processes at once."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from alembic import command
from sqlalchemy import create_engine, inspect

from core.db import migrate
from core.db.models import Base
from tests.servers.postgres import create_database, drop_database


@pytest.fixture
def empty_url(postgres_url: str) -> Iterator[str]:
    url = create_database(postgres_url)
    yield url
    drop_database(postgres_url, url)


def tables(url: str) -> set[str]:
    engine = create_engine(url)
    try:
        return set(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def is_current(url: str) -> bool:
    engine = create_engine(url)
    try:
        return migrate.is_current(engine)
    finally:
        engine.dispose()


def test_an_upgrade_from_nothing_makes_every_table(empty_url):
    assert not is_current(empty_url)
    migrate.upgrade(empty_url)
    assert tables(empty_url) == {*Base.metadata.tables, "alembic_version"}
    assert is_current(empty_url)


def test_an_upgrade_can_be_repeated(empty_url):
    migrate.upgrade(empty_url)
    migrate.upgrade(empty_url)
    assert is_current(empty_url)


def test_models_and_migrations_agree(database_url):
    command.check(migrate.alembic_config(database_url))


def test_a_new_migration_would_name_no_class_of_ours(empty_url, tmp_path):
    config = migrate.alembic_config(empty_url)
    config.set_main_option("version_locations", str(tmp_path))
    command.revision(config, message="everything", autogenerate=True, head="base", version_path=str(tmp_path))
    (written,) = tmp_path.glob("*.py")
    source = written.read_text()
    assert 'sa.Column("status", sa.Text(), nullable=False)' in source.replace("'", '"')
    assert "core." not in source


def test_a_downgrade_leaves_nothing_and_the_way_up_again_is_open(empty_url):
    migrate.upgrade(empty_url)
    command.downgrade(migrate.alembic_config(empty_url), "base")
    assert tables(empty_url) == {"alembic_version"}
    migrate.upgrade(empty_url)
    assert is_current(empty_url)


def test_two_processes_that_migrate_at_once_both_succeed(empty_url):
    program = f"from core.db import migrate; migrate.upgrade({empty_url!r})"
    processes = [
        subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(2)
    ]
    answers = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert [code for _, code in answers] == [0, 0], answers
    assert is_current(empty_url)
