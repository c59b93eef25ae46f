"""One task from claim to answer, in this process; reward code runs in sandboxes below it.

What a reward does wrong is part of an answer. A task fails when it cannot be answered: no sandbox, no file, no time.
"""

import tempfile
from pathlib import Path
from typing import Any

import structlog
from billiard.exceptions import SoftTimeLimitExceeded

from core.db import grading_tasks
from core.db.grading_tasks import Claim
from core.db.session import LEDGER_AWAY
from core.errors import ServiceError
from core.failpoints import failpoint
from core.ids import GradingTaskId
from worker.grading_tasks.context import Context, Workplace
from worker.grading_tasks.handlers import HANDLERS

log = structlog.get_logger()

SOFT_LIMIT_S = 50.0
"""After this the task is told to end; it fails with a reason."""
HARD_LIMIT_S = 60.0
"""After this its process is killed, as Celery does it; the task is tried again once its lease has run out."""
LEASE_S = 75.0


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
    with place.sessions.begin() as session:
        claim = grading_tasks.claim(session, task_id, ttl_s=LEASE_S)
    if claim is None:
        return
    failpoint("grading.claimed")
    with structlog.contextvars.bound_contextvars(task_id=task_id, attempt=claim.attempt, kind=claim.kind):
        result = _result(claim, place)
        if isinstance(result, ServiceError):
            _fail(place, claim, result)
        else:
            _finish(place, claim, result)


def _result(claim: Claim, place: Workplace) -> dict[str, Any] | ServiceError:
    try:
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
    with tempfile.TemporaryDirectory(prefix="podium-grading-", ignore_cleanup_errors=True) as folder:
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
