"""What the API has the grading worker do: a row, a hint after the commit, and a short wait for the row's answer."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

from app.hints import Hints
from core.db import grading_tasks
from core.db.models import GradingTask
from core.db.session import Sessions
from core.errors import ServiceError, Unavailable
from core.grading_tasks import GradingTaskKind, GradingTaskStatus
from core.ids import GradingTaskId, TenantId
from core.queue import GRADING_QUEUE, GRADING_TASK

MAX_WAITING = 16
"""Requests that wait at once: each holds one of the server's threads, of which there are 40."""
MAX_WAITING_OF_A_TENANT = 8
POLL_S = 0.03


class GradingWorkerAway(Unavailable):
    """No grading worker has answered in time: there is none, or all are busy."""

    code = "grading_worker_away"
    default_fix = (
        "Try again. If it stays, start a grading worker (`podium up` and docker compose do) and look at its log."
    )


class GradingTooSlow(Unavailable):
    """A grading worker is at it, and has not finished in time."""

    code = "grading_too_slow"
    default_fix = (
        "Make the grader load and answer faster, or try it with fewer tests; "
        "the operator may let requests wait longer: PODIUM_GRADER_WAIT_S."
    )


class GradingBusy(Unavailable):
    """As many requests wait for the grading worker as may, of all tenants or of this one."""

    code = "grading_busy"
    default_fix = "Try again in a moment, with fewer requests at once."


class GradingFailed(ServiceError):
    """The grading worker could not do what was asked of it; what a grader does wrong is an answer, not this."""

    code = "grading_failed"
    status = 503
    type = "server_error"


class GradingTasks:
    """Thread-safe."""

    def __init__(self, sessions: Sessions, hints: Hints) -> None:
        self._sessions = sessions
        self._hints = hints
        self._waiting: Counter[TenantId] = Counter()
        self._lock = Lock()

    def hint(self, task_id: GradingTaskId) -> bool:
        """Tell the worker of a task whose row is committed; False when the broker is away."""
        return self._hints.send(GRADING_QUEUE, GRADING_TASK, task_id)

    def wait(self, task_id: GradingTaskId, *, within_s: float) -> GradingTask | None:
        """The task once it has ended; None when it has not in time. Raises GradingBusy."""
        task = self._read(task_id)
        if task is not None and not task.status.is_final:
            with self._seat(task.tenant_id):
                task = self._poll(task_id, within_s)
        return task if task is not None and task.status.is_final else None

    def ask(
        self, tenant_id: TenantId, kind: GradingTaskKind, request: Mapping[str, Any], *, within_s: float
    ) -> dict[str, Any]:
        """The answer, for a client that has nothing without it. The seat comes first: who is refused leaves no task.

        Raises GradingBusy, GradingWorkerAway, GradingTooSlow or GradingFailed; then nobody begins the task any more.
        """
        with self._seat(tenant_id):
            with self._sessions.begin() as session:
                added = grading_tasks.add(session, tenant_id=tenant_id, kind=kind, request=request)
            self.hint(added.id)
            task = self._poll(added.id, within_s)
        if task is None or not task.status.is_final:
            self._withdraw(added.id)
            if task is not None and task.status is GradingTaskStatus.RUNNING:
                raise GradingTooSlow(f"The grading worker is still at it after {within_s:g} s.")
            raise GradingWorkerAway(f"The grading worker has not answered within {within_s:g} s.")
        if task.answer is None:
            error = task.error or {}
            raise GradingFailed(f"The grading worker failed: {error.get('message')}", fix=error.get("fix"))
        return task.answer

    def _withdraw(self, task_id: GradingTaskId) -> None:
        with self._sessions.begin() as session:
            grading_tasks.withdraw(session, task_id)

    @contextmanager
    def _seat(self, tenant_id: TenantId) -> Iterator[None]:
        """One of all, and one of the tenant's: nobody may take all of them."""
        with self._lock:
            if self._waiting.total() >= MAX_WAITING or self._waiting[tenant_id] >= MAX_WAITING_OF_A_TENANT:
                raise GradingBusy("Too many requests wait for the grading worker.")
            self._waiting[tenant_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[tenant_id] -= 1
                self._waiting += Counter()  # forgets who waits no more

    def _poll(self, task_id: GradingTaskId, within_s: float) -> GradingTask | None:
        """As it is once it has ended, or when the time is over; None for one that is not there."""
        deadline = time.monotonic() + within_s
        while (task := self._read(task_id)) is not None and not task.status.is_final and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return task

    def _read(self, task_id: GradingTaskId) -> GradingTask | None:
        with self._sessions() as session:
            return grading_tasks.get(session, task_id)
