"""Telling workers at once of what was just committed, where somebody waits for it. A hint may be lost."""

import structlog
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from core.queue import hint_message
from core.settings import Settings

log = structlog.get_logger()

TIMEOUT_S = 0.4
"""To connect, and for an answer: a broker that says nothing costs a client less than a second."""
MAX_WAITING = 256
"""Hints in a queue at once: where nobody takes them, more are of no use. The dispatcher sends them again."""


class Hints:
    """Thread-safe; connects when it is first used."""

    def __init__(self, settings: Settings) -> None:
        self._broker = Redis.from_url(
            settings.broker_url.get_secret_value(),
            socket_connect_timeout=TIMEOUT_S,
            socket_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    def send(self, queue: str, task: str, row_id: str) -> bool:
        """False, and no error, for a broker that is away: the dispatcher comes again."""
        try:
            if self._broker.llen(queue) < MAX_WAITING:
                self._broker.lpush(queue, hint_message(queue, task, row_id))
        except RedisError as error:
            log.warning("hint_not_sent", row_id=row_id, error=str(error))
            return False
        return True

    def close(self) -> None:
        self._broker.close()
