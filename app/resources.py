"""What the API holds open while it runs. Nothing connects at the start: `/readyz` says what answers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from app.graders.tasks import GradingTasks
from app.hints import Hints
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
    grading: GradingTasks


@contextmanager
def open_resources(settings: Settings) -> Iterator[Resources]:
    engine = make_engine(settings.database_url, pre_ping=False)
    give_up_on_silence(engine)
    sessions = sessionmaker(engine, expire_on_commit=False)
    hints = Hints(settings)
    try:
        yield Resources(
            settings=settings,
            engine=engine,
            sessions=sessions,
            store=open_store(settings),
            grading=GradingTasks(sessions, hints),
        )
    finally:
        hints.close()
        engine.dispose()
