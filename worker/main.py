"""The Celery app: `celery -A worker.main worker`. Celery only starts supervisors; it never trains, and keeps no state.

Every setting that could make Celery repeat, delay or remember a job is off: the row decides, a message is a hint.
Evidence for each choice: docs/decisions/0001-the-row-is-the-truth.md.
"""

import mmap
from collections.abc import Sequence
from typing import Any

import psutil
import structlog
from celery import Celery
from celery.signals import setup_logging, worker_shutting_down

from core.logging import configure_logging
from core.queue import TRAIN_QUEUE, TRAIN_TASK, train_queue
from core.settings import Settings, get_settings

log = structlog.get_logger()

SUPERVISOR_MARK = "worker.supervisor"
"""A word of the command line that the process table shows for a supervisor, whoever started it."""
SOCKET_TIMEOUT_S = 5

_stopping = mmap.mmap(-1, 1)
"""One byte that the main process shares with its pool children: not 0 once the worker is shutting down."""


def make_celery(settings: Settings, *, include: Sequence[str] = ("worker.tasks",)) -> Celery:
    """`include`: the modules with the tasks that the app's workers run."""
    app = Celery("podium", broker=settings.broker_url.get_secret_value(), include=list(include))
    app.conf.update(
        task_default_queue=TRAIN_QUEUE,
        # What a worker without `-Q` takes from.
        task_queues={queue: {"exchange": queue} for queue in map(train_queue, range(1, settings.gpus + 1))},
        task_routes={TRAIN_TASK: {"queue": TRAIN_QUEUE}},
        task_acks_late=False,
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        worker_prefetch_multiplier=1,
        # A hint that a busy worker held back would be deaf to idle ones, and would still run at a warm shutdown.
        worker_disable_prefetch=True,
        worker_concurrency=1,
        worker_enable_remote_control=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "socket_timeout": SOCKET_TIMEOUT_S,
            "socket_connect_timeout": SOCKET_TIMEOUT_S,
            "socket_keepalive": True,
            # One try when a hint is sent: the dispatcher itself comes again.
            "retry_policy": {"max_retries": 1},
        },
    )
    return app


app = make_celery(get_settings())


def is_stopping() -> bool:
    """Whether this worker is shutting down; its pool children may ask."""
    return _stopping[0] != 0


def is_supervisor(process: psutil.Process) -> bool:
    """Raises psutil.NoSuchProcess. A title that was set is one argument, and empty ones behind it."""
    return SUPERVISOR_MARK in " ".join(process.cmdline()).split()


@setup_logging.connect  # type: ignore[untyped-decorator]
def _log_like_the_rest(**_: Any) -> None:
    settings = get_settings()
    configure_logging(settings.log_format, settings.log_level)


@worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _stop_supervisors(**_: Any) -> None:
    """Tell every supervisor below this worker at once: a warm shutdown would wait for the whole job.

    A supervisor that starts at this very moment is stopped by its task (`worker.tasks`), which sees the flag.
    """
    _stopping[0] = 1
    for process in psutil.Process().children(recursive=True):
        try:
            if is_supervisor(process):
                log.info("supervisor_told_to_stop", pid=process.pid)
                process.terminate()
        except psutil.NoSuchProcess:
            continue
