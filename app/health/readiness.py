"""What the API needs from others, asked side by side, with an answer within seconds even when somebody is silent."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from time import monotonic

import structlog
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app.resources import Resources
from core.db import migrate
from core.errors import ServiceError, Unavailable
from core.settings import Settings

ANSWER_WITHIN_S = 3.0
STORE_KEPT_S = 30.0
"""The store is asked with real writes, so not at every probe of a load balancer."""
FAILURE_KEPT_S = 5.0
_BROKER_TIMEOUT_S = 2.0

log = structlog.get_logger()


class SchemaOutdated(ServiceError):
    """The database's tables are not the ones that this version was written for."""

    code = "schema_outdated"
    status = 503
    default_fix = "Run `podium migrate` with the version that is to serve."


@dataclass(frozen=True, slots=True)
class Finding:
    trouble: ServiceError | None
    took_s: float | None = None
    """Unset for a part that has not answered yet."""
    proved: tuple[str, ...] = ()
    """What a self-test has shown of the part."""


@dataclass(frozen=True, slots=True)
class _Check:
    run: Callable[[], tuple[str, ...]]
    """Returns what it has proved; raises ServiceError with a fix."""
    kept_s: float = 0.0
    """How long a good answer is believed."""


@dataclass(frozen=True, slots=True)
class _Asked:
    answer: Future[Finding]
    asked_at: float


class Readiness:
    """Thread-safe. A check that is still running is waited for, not started twice."""

    def __init__(self, resources: Resources) -> None:
        self._broker = _broker(resources.settings)
        self._checks = {
            "database": _Check(lambda: _check_database(resources)),
            "migrations": _Check(lambda: _check_migrations(resources)),
            "broker": _Check(lambda: _check_broker(self._broker)),
            "store": _Check(lambda: resources.store.check().proved, kept_s=STORE_KEPT_S),
        }
        self._asked: dict[str, _Asked] = {}
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(len(self._checks), thread_name_prefix="readiness")

    def findings(self) -> dict[str, Finding]:
        """Each part, with what was found."""
        with self._lock:
            answers = {name: self._ask(name, check) for name, check in self._checks.items()}
        wait(answers.values(), timeout=ANSWER_WITHIN_S)
        return {name: answer.result() if answer.done() else _silent(name) for name, answer in answers.items()}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._broker.close()

    def _ask(self, name: str, check: _Check) -> Future[Finding]:
        last = self._asked.get(name)
        if last is None or not _still_counts(last, check):
            last = self._asked[name] = _Asked(self._threads.submit(_examine, name, check), monotonic())
        return last.answer


def _still_counts(asked: _Asked, check: _Check) -> bool:
    if not asked.answer.done():
        return True
    if asked.answer.exception() is not None:
        return False
    found = asked.answer.result()
    kept_s = check.kept_s if found.trouble is None else min(FAILURE_KEPT_S, check.kept_s)
    return monotonic() - asked.asked_at < (found.took_s or 0) + kept_s


def _examine(name: str, check: _Check) -> Finding:
    began_at = monotonic()
    try:
        proved = check.run()
    except ServiceError as error:
        log.warning("not_ready", part=name, code=error.code, reason=error.message)
        return Finding(error, monotonic() - began_at)
    return Finding(None, monotonic() - began_at, proved)


def _check_database(resources: Resources) -> tuple[str, ...]:
    with _database_asked(), resources.engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    return ()


def _check_migrations(resources: Resources) -> tuple[str, ...]:
    with _database_asked():
        if not migrate.is_current(resources.engine):
            raise SchemaOutdated("The database's schema is not the one of this version.")
    return ()


def _check_broker(broker: Redis) -> tuple[str, ...]:
    try:
        broker.ping()
    except RedisError as error:
        fix = "Start Valkey or Redis, or correct PODIUM_BROKER_URL. Submitted jobs are safe, and wait."
        raise Unavailable("The broker does not answer.", fix=fix) from error
    return ()


@contextmanager
def _database_asked() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        fix = "Start PostgreSQL, or correct PODIUM_DATABASE_URL."
        raise Unavailable("The database does not answer.", fix=fix) from error


def _broker(settings: Settings) -> Redis:
    return Redis.from_url(
        settings.broker_url.get_secret_value(),
        socket_connect_timeout=_BROKER_TIMEOUT_S,
        socket_timeout=_BROKER_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
    )


def _silent(name: str) -> Finding:
    message = f"The {name} check did not end within {ANSWER_WITHIN_S:g} s."
    return Finding(Unavailable(message, fix="Look at that part's host."))
