"""Schema migrations, run for real everywhere: the first start, the container's one-shot service, the tests."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

MIGRATIONS = Path(__file__).resolve().parents[2] / "migrations"


def upgrade(database_url: str) -> None:
    """Bring the schema to the newest revision. Safe to call again, and from several processes at once."""
    command.upgrade(alembic_config(database_url), "head")


def is_current(engine: Engine) -> bool:
    """Whether the database's schema is the one that this code was written for."""
    head = ScriptDirectory(str(MIGRATIONS)).get_current_head()
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision() == head


def alembic_config(database_url: str) -> Config:
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["database_url"] = database_url
    return config
