"""An export's lease is renewed between two calls of a client, each of which may take as long as a call may."""

import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

import pytest

from tests.worker.exports.exporting import Exporting
from worker.exports.target import NONE_YET, Conclusion, Point, RunFacts

TRACKIO = {"type": "trackio", "trackio": {"project": "p"}}


class Watching:
    """Takes everything, and notes until when the export was claimed as each call came."""

    where = "here"

    def __init__(self, lease: Callable[[], datetime | None]) -> None:
        self._lease = lease
        self.leases: list[tuple[str, datetime | None]] = []

    def note(self, call: str) -> None:
        self.leases.append((call, self._lease()))

    def open(self, facts: RunFacts) -> int:
        self.note("open")
        return NONE_YET

    def send(self, points: Sequence[Point]) -> None:
        self.note("send")

    def finish(self, points: Sequence[Point], conclusion: Conclusion) -> None:
        self.note("finish")

    def leave(self) -> None:
        self.note("leave")


def test_no_two_calls_share_a_lease(exporting: Exporting, monkeypatch: pytest.MonkeyPatch):
    run = exporting.running_job(TRACKIO, steps=2)
    stream = Watching(lambda: exporting.row(run.job_id).lease_expires_at)

    def make(*_: Any) -> Watching:
        stream.note("load")
        return stream

    module = ModuleType("worker.exports.trackio")
    monkeypatch.setattr(module, "make", make, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exporting.export()
    assert [call for call, _ in stream.leases] == ["load", "open", "send", "leave"]
    leases = [lease for _, lease in stream.leases]
    assert len(set(leases)) == len(leases)
    assert leases == sorted(leases)
