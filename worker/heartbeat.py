"""Keeps a lease alive from a thread of its own, hears the API's wishes, and fences itself when it cannot.

Two threads, because a renewal may hang on a silent database: the renewer talks to the ledger, the guard only looks
at the clock. When the lease was not renewed until `margin_s` before its end, the guard calls `on_lost`, which kills
the trainer: nobody computes under a lease that somebody else may already hold.
"""

import contextvars
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import structlog
from sqlalchemy.exc import SQLAlchemyError

from core.activity import Activity
from core.db import leases
from core.db.leases import Lease, LeaseLost
from core.db.session import Sessions
from core.settings import Settings

log = structlog.get_logger()

RETRY_S = 1.0
"""Pause before the next try when a renewal failed."""
LAST_BEAT_S = 1.0
"""How long the end waits for a renewal under way: one that hangs is left behind."""


class Heartbeat:
    """A context: beats inside the block. `on_lost`, `on_cancel` and `on_pause` are called once each, from its threads;
    `activity` is asked at each beat.

    `claimed_at` is this process's monotonic clock just before the lease was asked for.
    """

    def __init__(
        self,
        sessions: Sessions,
        lease: Lease,
        settings: Settings,
        *,
        claimed_at: float,
        on_lost: Callable[[], None],
        on_cancel: Callable[[], None],
        on_pause: Callable[[], None] = lambda: None,
        activity: Callable[[], Activity | None] = lambda: None,
    ) -> None:
        self._sessions = sessions
        self._lease = lease
        self._settings = settings
        self._on_lost = on_lost
        self._on_cancel = on_cancel
        self._on_pause = on_pause
        self._activity = activity
        self._ended = threading.Event()
        self._losing = threading.Lock()
        self.lost = threading.Event()
        self.cancelled = threading.Event()
        self.paused = threading.Event()
        self._deadline = self._next_deadline(claimed_at)
        self._threads = [
            _thread("lease-renewer", self._renew_until_ended),
            _thread("lease-guard", self._guard_until_ended),
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(LAST_BEAT_S)

    def _next_deadline(self, asked_at: float) -> float:
        """Counted from before the question: the database may have started the lease's time that early."""
        return asked_at + self._settings.lease_ttl_s - self._settings.lease_margin_s

    def _renew_until_ended(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause) and not self.lost.is_set():
            pause = self._renew()

    def _renew(self) -> float:
        """One beat; how long to wait for the next."""
        asked_at = time.monotonic()
        try:
            with self._sessions.begin() as session:
                ttl_s = self._settings.lease_ttl_s
                wishes = leases.renew(session, self._lease, ttl_s=ttl_s, activity=self._activity())
        except LeaseLost:
            self._lose("lease_lost")
            return 0.0
        except SQLAlchemyError as error:
            log.warning("lease_not_renewed", error=str(error).splitlines()[0])
            return RETRY_S
        self._deadline = self._next_deadline(asked_at)
        if wishes.cancel and not self.cancelled.is_set():
            self.cancelled.set()
            self._on_cancel()
        if wishes.pause and not self.paused.is_set():
            self.paused.set()
            self._on_pause()
        return self._settings.lease_renew_s

    def _guard_until_ended(self) -> None:
        while not self._ended.wait(max(0.0, self._deadline - time.monotonic())):
            if time.monotonic() >= self._deadline:
                self._lose("lease_not_renewed_in_time")
                return

    def _lose(self, event: str) -> None:
        with self._losing:
            if self._ended.is_set() or self.lost.is_set():
                return
            self.lost.set()
        log.warning(event)
        self._on_lost()


def _thread(name: str, target: Callable[[], None]) -> threading.Thread:
    """A daemon whose log lines name the job, as those of the thread that makes it."""
    return threading.Thread(target=contextvars.copy_context().run, args=(target,), name=name, daemon=True)
