"""What the API holds open while it runs. Nothing connects at the start: `/readyz` says what answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from core.db.session import Sessions, make_engine
from core.db.silence import give_up_on_silence
from core.settings import Settings
from core.storage.connect import open_store
from core.storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Resources:
    settings: Settings
    engine: Engine
    sessions: Sessions
    store: ObjectStore


@contextmanager
def open_resources(settings: Settings) -> Iterator[Resources]:
    engine = make_engine(settings.database_url, pre_ping=False)
    give_up_on_silence(engine)
    try:
        yield Resources(
            settings=settings,
            engine=engine,
            sessions=sessionmaker(engine, expire_on_commit=False),
            store=open_store(settings),
        )
    finally:
        engine.dispose()
