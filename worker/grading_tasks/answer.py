"""One task from claim to answer, in this process; reward code runs in sandboxes below it.

What a reward does wrong is part of an answer. A task fails when it cannot be answered: no sandbox, no file, no time.
"""

import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
from billiard.exceptions import SoftTimeLimitExceeded
from billiard.pool import SIG_SOFT_TIMEOUT

from core.db import grading_tasks
from core.db.grading_tasks import Claim
from core.db.session import LEDGER_AWAY
from core.errors import ServiceError
from core.failpoints import failpoint
from core.ids import GradingTaskId
from core.queue import GRADING_CONCURRENCY
from worker.grading_tasks.context import Context, Workplace
from worker.grading_tasks.handlers import HANDLERS

log = structlog.get_logger()
_SignalHandler = Callable[[int, FrameType | None], Any] | int | None
"""As `signal.signal` takes and returns it."""

SOFT_LIMIT_S = 50.0
"""After this the task is told to end; it fails with a reason."""
HARD_LIMIT_S = 60.0
"""After this its process is killed, as Celery does it."""
LAST_WORDS_S = 56.0
"""A task that has not ended by then is failed in the ledger: whoever is killed can say nothing, and to do it again
would end the same."""
LEASE_S = 75.0
MOST_OF_A_TENANT = GRADING_CONCURRENCY // 2
"""Of the tasks that a worker does at once, while others wait."""
MOST_LONG = GRADING_CONCURRENCY - 1
"""Of probes and rescorings at once: a grader's trial finds a place within its two seconds, whatever they do."""


class GradingTimedOut(ServiceError):
    """A task of the grading worker took longer than one may."""

    code = "grading_timed_out"
    status = 503
    type = "server_error"
    default_fix = "Make the reward load and answer faster, or try it on fewer rows."


class UnknownGradingTask(ServiceError):
    """A grading worker that is older than the API was asked for what it cannot do."""

    code = "unknown_grading_task"
    status = 503
    type = "server_error"
    default_fix = "Run the grading worker from the same version as the API."


class GradingBroke(ServiceError):
    """A fault of ours in the grading worker; its log has the traceback."""

    code = "grading_broke"
    type = "server_error"
    default_fix = "Look at the grading worker's log; nothing is wrong with the request."


def answer(task_id: GradingTaskId, place: Workplace) -> None:
    """Claim the task, and write its answer or its error. Raises errors of the ledger: then it is tried again."""
    with _soft_limit(_not_now) as rings:
        _answer(task_id, place, rings)


def _answer(task_id: GradingTaskId, place: Workplace, rings: _SignalHandler) -> None:
    with place.sessions.begin() as session:
        claim = grading_tasks.claim(
            session, task_id, ttl_s=LEASE_S, most_of_a_tenant=MOST_OF_A_TENANT, most_long=MOST_LONG
        )
    if claim is None:
        return
    failpoint("grading.claimed")
    with structlog.contextvars.bound_contextvars(task_id=task_id, attempt=claim.attempt, kind=claim.kind):
        with _last_words(place, claim):
            result = _result(claim, place, rings)
        if isinstance(result, ServiceError):
            _fail(place, claim, result)
        else:
            _finish(place, claim, result)


def _result(claim: Claim, place: Workplace, rings: _SignalHandler) -> dict[str, Any] | ServiceError:
    try:
        with _soft_limit(rings):
            return _handle(claim, place)
    except SoftTimeLimitExceeded:
        return GradingTimedOut(f"The grading worker gave up after {SOFT_LIMIT_S:g} s.")
    except ServiceError as error:
        return error
    except LEDGER_AWAY:
        raise
    except Exception as fault:
        log.exception("grading_task_broke")
        return GradingBroke(f"The grading worker failed with {type(fault).__name__}.")


def _handle(claim: Claim, place: Workplace) -> dict[str, Any]:
    handler = HANDLERS.get(claim.kind)
    if handler is None:
        raise UnknownGradingTask(f"This grading worker knows no task `{claim.kind}`.")
    with tempfile.TemporaryDirectory(prefix="podium-task-", ignore_cleanup_errors=True) as folder:
        return handler(claim.request, Context(place, claim.tenant_id, Path(folder), SOFT_LIMIT_S))


def _finish(place: Workplace, claim: Claim, result: dict[str, Any]) -> None:
    with place.sessions.begin() as session:
        written = grading_tasks.finish(session, claim, result)
    log.info("grading_task_done", written=written)


def _fail(place: Workplace, claim: Claim, error: ServiceError) -> None:
    told = {"code": error.code, "message": error.message, "param": error.param, "fix": error.fix}
    with place.sessions.begin() as session:
        written = grading_tasks.fail(session, claim, told)
    log.warning("grading_task_failed", code=error.code, reason=error.message, written=written)


@contextmanager
def _soft_limit(handler: _SignalHandler) -> Iterator[_SignalHandler]:
    """Yields what handled its signal before. To block the signal would not do: threads that do not would take it."""
    before = signal.signal(SIG_SOFT_TIMEOUT, handler)
    try:
        yield before
    finally:
        signal.signal(SIG_SOFT_TIMEOUT, before)


def _not_now(number: int, frame: FrameType | None) -> None:
    """The limit rings while a task is claimed or its answer is written, which must not be lost."""


@contextmanager
def _last_words(place: Workplace, claim: Claim) -> Iterator[None]:
    """Fail the task in the ledger shortly before the process is killed for it."""
    reason = GradingTimedOut(f"The task did not end when it was told to, and is ended after {HARD_LIMIT_S:g} s.")
    timer = threading.Timer(LAST_WORDS_S, _fail, (place, claim, reason))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
