"""Engines and sessions. One use case is one visible transaction: `with sessions.begin() as session:`."""

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.orm import Session, sessionmaker

from core.db.storable import dump_json

Sessions = sessionmaker[Session]

LEDGER_AWAY = (OperationalError, InterfaceError, InternalError)
"""What a transaction raises when the server is gone, going, or gave it up: the same one may succeed later."""

LOCK_TIMEOUT_S = 5
IDLE_IN_TRANSACTION_S = 4
"""The server ends a transaction that does nothing for this long: a frozen worker must not keep its job's row locked.
Shorter than the wait for a lock, so that the claim which meets such a row waits for it and succeeds."""


def make_engine(database_url: str, *, pool_size: int = 10, pre_ping: bool = True) -> Engine:
    """An engine that notices dead connections and gives up on a silent server within seconds.

    Without `pre_ping` the caller notices them itself, sooner: `core.db.silence`.
    """
    options = {
        "statement_timeout": "15s",
        "lock_timeout": f"{LOCK_TIMEOUT_S}s",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_S}s",
        "timezone": "UTC",
    }
    return create_engine(
        database_url,
        pool_pre_ping=pre_ping,
        pool_size=pool_size,
        max_overflow=10,
        pool_timeout=2,
        json_serializer=dump_json,
        connect_args={
            "connect_timeout": 2,
            "options": " ".join(f"-c {name}={value}" for name, value in options.items()),
            # tcp(7): unanswered data ends a connection after 5 s, a host that is gone after about 10 s.
            "tcp_user_timeout": 5000,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
        },
    )


def make_sessions(database_url: str, *, pool_size: int = 10) -> Sessions:
    return sessionmaker(make_engine(database_url, pool_size=pool_size), expire_on_commit=False)
