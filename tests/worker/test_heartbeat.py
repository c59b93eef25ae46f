"""The lease's two threads: one that renews, one that only looks at the clock."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from core.db import jobs
from core.db.leases import Lease
from core.db.session import Sessions, make_sessions
from core.settings import Settings
from tests.factories import claimed, expire, read_job
from tests.polling import wait_until
from tests.ports import free_port
from worker.heartbeat import Heartbeat


class Beats:
    """A heartbeat, and how often it called back."""

    def __init__(self, sessions: Sessions, lease: Lease, settings: Settings, claimed_at: float) -> None:
        self.lost: list[str] = []
        self.cancelled: list[str] = []
        self.heartbeat = Heartbeat(
            sessions,
            lease,
            settings,
            claimed_at=claimed_at,
            on_lost=lambda: self.lost.append(threading.current_thread().name),
            on_cancel=lambda: self.cancelled.append(threading.current_thread().name),
        )


@contextmanager
def beating(
    sessions: Sessions, lease: Lease, settings: Settings, *, claimed_ago_s: float = 0.0, **changes: float
) -> Iterator[Beats]:
    fast = settings.model_copy(update={"lease_renew_s": 0.05} | changes)
    beats = Beats(sessions, lease, fast, time.monotonic() - claimed_ago_s)
    with beats.heartbeat:
        yield beats


@pytest.fixture
def unreachable() -> Iterator[Sessions]:
    sessions = make_sessions(f"postgresql+psycopg://podium@127.0.0.1:{free_port()}/podium")
    yield sessions
    sessions.kw["bind"].dispose()


def expires_at(sessions: Sessions, lease: Lease):
    return read_job(sessions, lease.job_id).lease_expires_at


def test_the_lease_is_renewed_inside_the_block_and_no_more_after_it(sessions, settings):
    lease = claimed(sessions, ttl_s=5)
    first = expires_at(sessions, lease)
    with beating(sessions, lease, settings) as beats:
        wait_until(lambda: (expires_at(sessions, lease) - first).total_seconds() > 50, what="the lease is renewed")
    after = expires_at(sessions, lease)
    assert not any(thread.name == "lease-renewer" for thread in threading.enumerate())
    assert expires_at(sessions, lease) == after
    assert (beats.lost, beats.cancelled) == ([], [])


def test_a_wish_to_cancel_is_heard_once(sessions, settings):
    lease = claimed(sessions)
    with sessions.begin() as session:
        jobs.request_cancel(session, jobs.get(session, lease.job_id))
    with beating(sessions, lease, settings) as beats:
        wait_until(beats.heartbeat.cancelled.is_set, what="the wish is heard")
        first = expires_at(sessions, lease)
        wait_until(lambda: expires_at(sessions, lease) > first, what="the lease is renewed again")
    assert beats.cancelled == ["lease-renewer"]
    assert beats.lost == []


def test_a_lease_that_somebody_else_has_is_lost_once(sessions, settings):
    lease = claimed(sessions)
    expire(sessions, lease.job_id)
    claimed(sessions, lease.job_id)
    with beating(sessions, lease, settings) as beats:
        assert beats.heartbeat.lost.wait(30)
    assert beats.lost == ["lease-renewer"]


def test_a_lease_that_cannot_be_renewed_is_given_up_before_its_end(sessions, settings, unreachable):
    lease = claimed(sessions)
    with beating(unreachable, lease, settings, lease_ttl_s=3.0, lease_margin_s=2.5) as beats:
        assert beats.heartbeat.lost.wait(2.5), "the margin before the end of the lease"
    assert beats.lost == ["lease-guard"]


def test_the_time_between_the_claim_and_the_first_beat_counts(sessions, settings, unreachable):
    lease = claimed(sessions)
    with beating(unreachable, lease, settings, claimed_ago_s=50.0, lease_ttl_s=60.0, lease_margin_s=15.0) as beats:
        assert beats.heartbeat.lost.wait(5)
    assert beats.lost == ["lease-guard"]
