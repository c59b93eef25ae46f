"""Engines and sessions. One use case is one visible transaction: `with sessions.begin() as session:`."""

from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session, sessionmaker

Sessions = sessionmaker[Session]


def make_engine(database_url: str, *, pool_size: int = 10) -> Engine:
    """An engine that notices dead connections and gives up on a silent server within seconds."""
    return create_engine(
        database_url,
        pool_pre_ping=True,
        pool_size=pool_size,
        max_overflow=10,
        pool_timeout=2,
        connect_args={
            "connect_timeout": 2,
            "options": "-c statement_timeout=15000 -c lock_timeout=5000 -c timezone=UTC",
            "tcp_user_timeout": 5000,
        },
    )


def make_sessions(database_url: str, *, pool_size: int = 10) -> Sessions:
    return sessionmaker(make_engine(database_url, pool_size=pool_size), expire_on_commit=False)
