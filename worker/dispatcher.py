"""Tells workers of jobs and grading tasks that are due: `python -m worker.dispatcher`. Any number may run.

It reads the rows, marks them as hinted, commits, and only then sends. A message that is lost is sent again after
`hint_repeat_s`; a message that arrives twice finds the job claimed. Of a grading task the API itself tells first,
because somebody waits. The janitor works beside it, in its own thread.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import redis
import structlog
from celery import Celery
from kombu.exceptions import OperationalError as BrokerError

from core.db import grading_tasks, jobs, leases
from core.db.session import LEDGER_AWAY, Sessions, make_sessions
from core.failpoints import failpoint
from core.logging import configure_logging
from core.queue import GRADING_QUEUE, GRADING_TASK, TRAIN_QUEUE, TRAIN_TASK, train_queue
from core.settings import Settings, get_settings
from worker import janitor, stop_signals
from worker.main import SOCKET_TIMEOUT_S, app

log = structlog.get_logger()

MAX_WAITING = 32
"""Hints in the queue at once. One that waits means that every worker is busy: more would only pile up, each of them
a supervisor that is started for nothing in the end."""
GRADING_REPEAT_S = 3.0
"""Grading tasks are waited for, so that a lost hint is to cost less than with jobs."""
BROKER_AWAY = (BrokerError, redis.RedisError, OSError)


class Hints(Protocol):
    def room(self) -> int:
        """How many more hints are of use now. Raises one of `BROKER_AWAY`."""

    def send(self, row_id: str) -> None:
        """Tell some worker of the job or task. Raises one of `BROKER_AWAY`."""


class TrainHints(Protocol):
    def for_gpus(self, gpus: int) -> Hints:
        """Of jobs that need so many: those that wait for a large worker take no room of others."""


class HintQueue:
    """The hints of one queue in one Celery app's broker."""

    def __init__(self, celery: Celery, queue: str = TRAIN_QUEUE, task: str = TRAIN_TASK) -> None:
        self._celery, self._queue, self._task = celery, queue, task
        self._client = redis.Redis.from_url(
            celery.conf.broker_url, socket_timeout=SOCKET_TIMEOUT_S, socket_connect_timeout=SOCKET_TIMEOUT_S
        )

    def room(self) -> int:
        """The queue is a list by its own name (Celery's monitoring guide, "Redis: queues")."""
        return MAX_WAITING - self._client.llen(self._queue)

    def send(self, row_id: str) -> None:
        self._celery.send_task(self._task, args=[row_id], queue=self._queue, retry=False)

    def for_gpus(self, gpus: int) -> "HintQueue":
        """The same broker's queue of jobs that need so many GPUs; closed with this one."""
        other = copy.copy(self)
        other._queue = train_queue(gpus)
        return other

    def close(self) -> None:
        self._client.close()
        self._celery.close()


def dispatch(sessions: Sessions, hints: TrainHints, settings: Settings) -> int:
    """Send a hint for the jobs that are due, as far as there is room; how many were sent.

    What is only wished of a job whose worker was lost is settled here.
    """
    with sessions.begin() as session:
        leases.settle_lost(session, max_failures=settings.max_failures)
        sizes = jobs.gpus_of_due(session, hint_repeat_s=settings.hint_repeat_s)
    take_due = partial(jobs.due, hint_repeat_s=settings.hint_repeat_s)
    return sum(_hint(sessions, hints.for_gpus(gpus), partial(take_due, gpus=gpus)) for gpus in sizes)


def dispatch_grading(sessions: Sessions, hints: Hints) -> int:
    """Send a hint again for the grading tasks that nobody has taken, as far as there is room; how many were sent."""
    return _hint(sessions, hints, partial(grading_tasks.due, hint_repeat_s=GRADING_REPEAT_S))


def main() -> None:
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)
    stop = stop_signals.remembered()
    sessions = make_sessions(settings.database_url, pool_size=3)
    hints, grading_hints = HintQueue(app), HintQueue(app, GRADING_QUEUE, GRADING_TASK)
    threading.Thread(target=janitor.tend, args=(sessions, settings, stop), name="janitor", daemon=True).start()
    log.info("dispatcher_started", poll_s=settings.dispatch_poll_s)
    while not stop.wait(settings.dispatch_poll_s):
        try:
            dispatch(sessions, hints, settings)
            dispatch_grading(sessions, grading_hints)
        except LEDGER_AWAY as error:
            log.warning("ledger_unreachable", error=str(error).splitlines()[0])
    for queue in (hints, grading_hints):
        queue.close()
    log.info("dispatcher_stopped")


def _hint(sessions: Sessions, hints: Hints, take_due: Callable[..., Sequence[str]]) -> int:
    """`take_due(session, limit=)` marks rows as hinted, and returns their ids."""
    try:
        room = hints.room()
    except BROKER_AWAY as error:
        log.warning("broker_unreachable", error=str(error))
        return 0
    if room <= 0:
        return 0
    with sessions.begin() as session:
        due = take_due(session, limit=room)
    failpoint("dispatch.marked")
    return _send(due, hints)


def _send(due: Sequence[str], hints: Hints) -> int:
    for number, row_id in enumerate(due):
        try:
            hints.send(row_id)
        except BROKER_AWAY as error:
            log.warning("hints_not_sent", count=len(due) - number, error=str(error))
            return number
        failpoint("dispatch.sent")
        log.info("hint_sent", row_id=row_id)
    return len(due)


if __name__ == "__main__":
    main()
