"""Tells workers of jobs that are due: `python -m worker.dispatcher`. Any number may run.

It reads the rows, marks them as hinted, commits, and only then sends. A message that is lost is sent again after
`hint_repeat_s`; a message that arrives twice finds the job claimed.
"""

import signal
import threading
from collections.abc import Callable
from types import FrameType

import structlog
from kombu.exceptions import OperationalError as BrokerError
from sqlalchemy.exc import OperationalError as DatabaseError

from core.db import jobs
from core.db.session import Sessions, make_sessions
from core.ids import JobId
from core.logging import configure_logging
from core.queue import TRAIN_TASK
from core.settings import Settings, get_settings
from worker.main import app

log = structlog.get_logger()


def dispatch(sessions: Sessions, send: Callable[[JobId], None], settings: Settings) -> int:
    """Send one hint for every job that is due; how many there were."""
    with sessions.begin() as session:
        due = jobs.due(session, hint_repeat_s=settings.hint_repeat_s)
    for job_id in due:
        try:
            send(job_id)
        except (BrokerError, OSError) as error:
            log.warning("hint_not_sent", job_id=job_id, error=str(error))
        else:
            log.info("hint_sent", job_id=job_id)
    return len(due)


def send_hint(job_id: JobId) -> None:
    app.send_task(TRAIN_TASK, args=[job_id], retry=False)


def main() -> None:
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)
    stop = _stop_on_signal()
    sessions = make_sessions(settings.database_url, pool_size=1)
    log.info("dispatcher_started", poll_s=settings.dispatch_poll_s)
    while not stop.wait(settings.dispatch_poll_s):
        try:
            dispatch(sessions, send_hint, settings)
        except DatabaseError as error:
            log.warning("ledger_unreachable", error=str(error).splitlines()[0])
    log.info("dispatcher_stopped")


def _stop_on_signal() -> threading.Event:
    stop = threading.Event()

    def handle(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


if __name__ == "__main__":
    main()
