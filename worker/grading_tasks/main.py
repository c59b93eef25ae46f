"""The grading worker's Celery app: `celery -A worker.grading_tasks.main worker -Q podium.grading`. Never torch.

It has an app of its own so that the training worker's processes stay without a database (`worker.main`), while its
pool children, forked from a parent that has loaded everything, begin a task within milliseconds.
"""

from typing import Any

import structlog
from celery.signals import worker_init, worker_process_init

from core.errors import ServiceError
from core.queue import GRADING_CONCURRENCY, GRADING_QUEUE, GRADING_TASK
from core.settings import get_settings
from worker import temporary
from worker.grading import orphans
from worker.grading.sandbox import find_sandbox
from worker.main import make_celery

log = structlog.get_logger()

app = make_celery(get_settings(), include=("worker.grading_tasks.tasks",))
app.conf.update(
    task_default_queue=GRADING_QUEUE,
    task_routes={GRADING_TASK: {"queue": GRADING_QUEUE}},
    worker_concurrency=GRADING_CONCURRENCY,
)


@worker_init.connect  # type: ignore[untyped-decorator]
def _look_for_the_sandbox(**_: Any) -> None:
    """Once, before the pool is forked: a look is a real start, and the pool children inherit what was found."""
    if get_settings().run_reward_code_without_sandbox:
        return
    try:
        find_sandbox()
    except ServiceError as error:
        log.warning("sandbox_unavailable", reason=error.message, fix=error.fix)


@worker_init.connect  # type: ignore[untyped-decorator]
def _sweep(**_: Any) -> None:
    """What a worker before this one has left."""
    temporary.sweep()
    orphans.sweep()


@worker_process_init.connect  # type: ignore[untyped-decorator]
def _hold_a_folder(**_: Any) -> None:
    """In each pool child. One that takes the place of a killed one removes what that has left."""
    temporary.sweep()
    temporary.hold_folder()
    orphans.sweep()
