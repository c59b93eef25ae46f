"""What the API has the grading worker do: a row, a hint after the commit, and a short wait for the row's answer."""

import time
from threading import BoundedSemaphore
from typing import Any

from app.hints import Hints
from core.db import grading_tasks
from core.db.models import GradingTask
from core.db.session import Sessions
from core.errors import ServiceError, Unavailable
from core.ids import GradingTaskId
from core.queue import GRADING_QUEUE, GRADING_TASK

MAX_WAITING = 16
"""Requests that wait at once: each holds one of the server's threads, of which there are 40."""
POLL_S = 0.03


class GradingWorkerAway(Unavailable):
    """No grading worker has answered in time: there is none, or all are busy."""

    code = "grading_worker_away"
    default_fix = (
        "Try again. If it stays, start a grading worker (`podium up` and docker compose do) and look at its log."
    )


class GradingBusy(Unavailable):
    """As many requests wait for the grading worker as may."""

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
        self._seats = BoundedSemaphore(MAX_WAITING)

    def hint(self, task_id: GradingTaskId) -> None:
        """Tell the worker of a task whose row is committed."""
        self._hints.send(GRADING_QUEUE, GRADING_TASK, task_id)

    def wait(self, task_id: GradingTaskId, *, within_s: float) -> GradingTask | None:
        """The task once it has ended; None when it has not in time. Raises GradingBusy."""
        if not self._seats.acquire(blocking=False):
            raise GradingBusy("Too many requests wait for the grading worker.")
        try:
            return self._poll(task_id, time.monotonic() + within_s)
        finally:
            self._seats.release()

    def answer_of(self, task_id: GradingTaskId, *, within_s: float) -> dict[str, Any]:
        """The answer, for a client that has nothing without it.

        Raises GradingWorkerAway, GradingBusy or GradingFailed; then the task is taken back, if nobody has begun it.
        """
        try:
            task = self.wait(task_id, within_s=within_s)
        except GradingBusy:
            self._withdraw(task_id)
            raise
        if task is None:
            self._withdraw(task_id)
            raise GradingWorkerAway(f"The grading worker has not answered within {within_s:g} s.")
        if task.answer is None:
            error = task.error or {}
            raise GradingFailed(f"The grading worker failed: {error.get('message')}", fix=error.get("fix"))
        return task.answer

    def _withdraw(self, task_id: GradingTaskId) -> None:
        with self._sessions.begin() as session:
            grading_tasks.withdraw(session, task_id)

    def _poll(self, task_id: GradingTaskId, deadline: float) -> GradingTask | None:
        while True:
            with self._sessions() as session:
                task = grading_tasks.get(session, task_id)
            if task is None or task.status.is_final:
                return task
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_S)
