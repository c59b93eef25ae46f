"""Commands that work on the ledger itself: migrations and API keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy.orm import Session

from cli.configuration import DEFAULT_TENANT, read_settings
from cli.errors import KeyUnknown
from cli.terminal import say, say_table
from core.db import api_keys, migrate
from core.db.session import make_engine
from core.ids import TenantId


def run_migrate(*, key_name: str | None) -> None:
    """Bring the schema to head. With a name, also make a key, unless a live one of that name is there."""
    database_url = read_settings().database_url
    migrate.upgrade(database_url)
    say("The schema is current.")
    if key_name is None:
        return
    with transaction(database_url) as session:
        taken = any(key.name == key_name and key.revoked_at is None for key in api_keys.list_all(session))
    if taken:
        say(f"A key named {key_name!r} exists; its secret was shown when it was made.")
    else:
        create_key(key_name, tenant=DEFAULT_TENANT)


def create_key(name: str, *, tenant: str) -> None:
    with transaction(read_settings().database_url) as session:
        key, secret = api_keys.create(session, tenant_id=TenantId(tenant), name=name)
        say(f"{key.id}  {name}  tenant {tenant}")
    say(secret)
    say("Keep the secret now: it is stored as a digest only, and never shown again.")


def list_keys() -> None:
    with transaction(read_settings().database_url) as session:
        rows = [
            (key.id, key.name, key.tenant_id, _minute(key.created_at), _minute(key.revoked_at))
            for key in api_keys.list_all(session)
        ]
    say_table(("id", "name", "tenant", "created", "revoked"), *rows)


def revoke_key(key_id: str) -> None:
    """Raises KeyUnknown."""
    with transaction(read_settings().database_url) as session:
        if not api_keys.revoke(session, key_id):
            raise KeyUnknown(f"No live key has the id {key_id!r}.", param="id")
    say(f"{key_id} is revoked.")


@contextmanager
def transaction(database_url: str) -> Iterator[Session]:
    """One transaction on a connection of its own, closed at the end."""
    engine = make_engine(database_url, pool_size=1)
    try:
        with Session(engine) as session, session.begin():
            yield session
    finally:
        engine.dispose()


def _minute(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"
