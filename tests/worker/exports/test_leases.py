"""An export's lease is renewed between two calls of a client, each of which may take as long as a call may."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import event

from core.db.models import StepMetrics
from core.db.session import Sessions
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


class WrittenLast:
    """A document that nobody looks at before the job's end."""

    where, is_live = "here", False
    points: Sequence[Point] = ()

    def write(self, facts: RunFacts, points: Sequence[Point], conclusion: Conclusion | None) -> None:
        self.points = points


def replace_trackio(monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]) -> None:
    module = ModuleType("worker.exports.trackio")
    monkeypatch.setattr(module, "make", make, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)


@contextmanager
def statements_of(sessions: Sessions) -> Iterator[list[str]]:
    """SQL as it is sent meanwhile."""
    engine = sessions.kw["bind"]
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)


def test_no_two_calls_share_a_lease(exporting: Exporting, monkeypatch: pytest.MonkeyPatch):
    run = exporting.running_job(TRACKIO, steps=2)
    stream = Watching(lambda: exporting.row(run.job_id).lease_expires_at)

    def make(*_: Any) -> Watching:
        stream.note("load")
        return stream

    replace_trackio(monkeypatch, make)
    exporting.export()
    assert [call for call, _ in stream.leases] == ["load", "open", "send", "leave"]
    leases = [lease for _, lease in stream.leases]
    assert len(set(leases)) == len(leases)
    assert leases == sorted(leases)


def test_no_step_is_read_while_the_job_runs_for_a_document_that_is_written_at_its_end(
    exporting: Exporting, monkeypatch: pytest.MonkeyPatch
):
    run, document = exporting.running_job(TRACKIO, steps=2), WrittenLast()
    replace_trackio(monkeypatch, lambda *_: document)
    with statements_of(exporting.workshop.sessions) as statements:
        exporting.export()
    assert statements
    assert not any(StepMetrics.__tablename__ in statement for statement in statements)
    run.fail()
    exporting.export()
    assert [point.step for point in document.points] == [0, 1, 2]
