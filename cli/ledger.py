"""Commands that work on the ledger itself: migrations and API keys."""

from datetime import datetime

from rich.table import Table

from cli.errors import KeyUnknown
from cli.terminal import console, say
from core.db import api_keys, migrate
from core.db.session import make_sessions
from core.ids import TenantId
from core.settings import get_settings

DEFAULT_TENANT = "default"


def run_migrate(*, key_name: str | None) -> None:
    """Bring the schema to head. With a name, also make a key, unless a live one of that name is there."""
    database_url = get_settings().database_url
    migrate.upgrade(database_url)
    say("The schema is current.")
    if key_name is None:
        return
    with make_sessions(database_url)() as session:
        taken = any(key.name == key_name and key.revoked_at is None for key in api_keys.list_all(session))
    if taken:
        say(f"A key named {key_name!r} exists; its secret was shown when it was made.")
    else:
        create_key(key_name, tenant=DEFAULT_TENANT)


def create_key(name: str, *, tenant: str) -> None:
    with make_sessions(get_settings().database_url).begin() as session:
        key, secret = api_keys.create(session, tenant_id=TenantId(tenant), name=name)
        key_id = key.id
    say(f"{key_id}  {name}  tenant {tenant}")
    say(f"{secret}")
    say("Keep the secret now: it is stored as a digest only, and never shown again.")


def list_keys() -> None:
    table = Table("id", "name", "tenant", "created", "revoked", box=None, pad_edge=False)
    with make_sessions(get_settings().database_url)() as session:
        for key in api_keys.list_all(session):
            table.add_row(key.id, key.name, key.tenant_id, _day(key.created_at), _day(key.revoked_at))
    console.print(table)


def revoke_key(key_id: str) -> None:
    """Raises KeyUnknown."""
    with make_sessions(get_settings().database_url).begin() as session:
        if not api_keys.revoke(session, key_id):
            raise KeyUnknown(f"No live key has the id {key_id!r}.", param="id")
    say(f"{key_id} is revoked.")


def _day(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M}"
