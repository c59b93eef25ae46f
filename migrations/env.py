"""Alembic's entry: one online migration at a time, serialised by an advisory lock."""

from typing import Any, Literal

from alembic import context
from sqlalchemy import create_engine, text

from core.db.models import Base, Word
from core.settings import get_settings

MIGRATION_LOCK = 0x706F6469756D
"""`podium` in ASCII: two processes that migrate at once wait for one another."""


def render_item(kind: str, item: Any, _context: Any) -> str | Literal[False]:
    """Migrations stay as they are when our enums change: they only know that a word is text."""
    return "sa.Text()" if kind == "type" and isinstance(item, Word) else False


def run() -> None:
    url = context.config.attributes.get("database_url") or get_settings().database_url
    engine = create_engine(url)
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=Base.metadata,
            compare_type=True,
            compare_server_default=False,
            render_item=render_item,
        )
        with context.begin_transaction():
            connection.execute(text("SET LOCAL lock_timeout = '60s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": MIGRATION_LOCK})
            context.run_migrations()
    engine.dispose()


run()
