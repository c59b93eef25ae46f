"""Trouble is told at the step where it shows: once, under the lease, and again only when it had gone."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event as database_event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from core.db import leases, progress
from core.db.leases import Lease, LeaseLost
from core.db.models import JobEvent
from core.learning.numbers import StepNumbers
from core.spec import Hyperparameters
from core.watch import WatchedField
from tests.factories import claimed, event_codes, expire, read_events
from tests.unit.learning.runs import CHANGE, GROUP, PROMPTS, collapsing_run, from_place, line, run_of
from tests.worker.workshop import Workshop
from worker.learning_watch import HEALED_AFTER_STEPS, LearningWatch
from worker.run_directory import RunDirectory, StepDone
from worker.shipper import Shipper

WATCHED = tuple(WatchedField(json_path=f"$.{name}") for name in ("death_date", "birth_date"))
TRUNCATED_FROM = 51
TRUNCATED = run_of(completions__clipped_ratio=from_place(TRUNCATED_FROM / 100, 0.0, 0.6)).steps


@pytest.fixture
def run(workshop: Workshop) -> RunDirectory:
    folder = workshop.folder / "run"
    folder.mkdir()
    return RunDirectory(folder)


def lease_of(workshop: Workshop, **changes: Any) -> Lease:
    size = Hyperparameters(max_steps=300, learning_rate=1e-3, num_generations=GROUP, prompts_per_step=PROMPTS)
    return claimed(workshop.sessions, workshop.queue(hyperparameters=size, **changes))


def report(workshop: Workshop, lease: Lease, steps: Sequence[StepNumbers]) -> None:
    with workshop.sessions.begin() as session:
        leases.hold(session, lease)
        for one in steps:
            progress.add_step(session, lease, one.step, one.metrics)


def told(workshop: Workshop, lease: Lease, code: str) -> list[JobEvent]:
    event_codes(workshop.sessions, lease.job_id)
    return [event for event in read_events(workshop.sessions, lease.job_id) if event.code == code]


def raised(workshop: Workshop, lease: Lease) -> list[tuple[str, int]]:
    return [(one.data["finding"], one.data["step"]) for one in told(workshop, lease, "finding_raised")]


def test_the_measured_collapse_is_told_within_three_steps(workshop: Workshop, run: RunDirectory) -> None:
    lease = lease_of(workshop, watch=WATCHED)
    shipper = Shipper(workshop.sessions, workshop.store, lease, run)
    for one in collapsing_run(seed=1).steps[: CHANGE + 3]:
        run.append(StepDone(at=time.time(), step=one.step, metrics=dict(one.metrics)))
        if one.step == CHANGE - 1 or one.step >= CHANGE:
            shipper.ship()
        if one.step == CHANGE - 1:
            assert raised(workshop, lease) == []
    shipper.close()
    (event,) = told(workshop, lease, "finding_raised")
    assert (event.level, event.data["finding"]) == ("warn", "field_collapse")
    assert CHANGE <= event.data["step"] < CHANGE + 3
    assert "`death_date`" in event.message
    assert event.data["since_step"] == pytest.approx(CHANGE, abs=3)
    assert event.data["fix"]


def test_each_field_that_collapses_is_told(workshop: Workshop) -> None:
    lease = lease_of(workshop, watch=WATCHED)
    watch = LearningWatch(workshop.sessions, lease)
    curves = {
        "watch__death_date__rows": line(64, 64),
        "watch__death_date__null_share": from_place(0.5, 0.01, 0.9),
        "watch__birth_date__rows": line(64, 64),
        "watch__birth_date__null_share": from_place(0.7, 0.01, 0.9),
    }
    for one in run_of(**curves).steps:
        report(workshop, lease, [one])
        watch.look()
    fields = [(event.data["finding"], event.data["subject"]) for event in told(workshop, lease, "finding_raised")]
    assert fields == [("field_collapse", "death_date"), ("field_collapse", "birth_date")]


def test_a_healthy_run_is_told_nothing(workshop: Workshop) -> None:
    lease = lease_of(workshop)
    watch = LearningWatch(workshop.sessions, lease)
    for one in run_of(seed=3).steps:
        report(workshop, lease, [one])
        watch.look()
    assert raised(workshop, lease) == []


def test_a_finding_is_told_once_while_it_lasts(workshop: Workshop) -> None:
    lease = lease_of(workshop)
    watch = LearningWatch(workshop.sessions, lease)
    report(workshop, lease, TRUNCATED[:80])
    watch.look()
    for one in TRUNCATED[80:]:
        report(workshop, lease, [one])
        watch.look()
        watch.look()
    assert raised(workshop, lease) == [("truncated", 80)]


def test_a_resumed_attempt_tells_nothing_again(workshop: Workshop) -> None:
    lease = lease_of(workshop)
    report(workshop, lease, TRUNCATED[:80])
    LearningWatch(workshop.sessions, lease).look()
    expire(workshop.sessions, lease.job_id)
    second = claimed(workshop.sessions, lease.job_id)
    with workshop.sessions.begin() as session:
        leases.hold(session, second)
        progress.set_resumed_from(session, second, 40)
    watch = LearningWatch(workshop.sessions, second)
    for one in TRUNCATED[40:]:
        report(workshop, second, [one])
        watch.look()
    assert raised(workshop, second) == [("truncated", 80)]
    assert told(workshop, second, "finding_healed") == []


def test_what_a_lost_answer_had_told_is_not_told_again(workshop: Workshop) -> None:
    lease = lease_of(workshop)
    first, second = (LearningWatch(workshop.sessions, lease) for _ in range(2))
    report(workshop, lease, TRUNCATED[:40])
    second.look()  # has read that nothing was told
    report(workshop, lease, TRUNCATED[40:80])
    first.look()
    second.look()
    assert raised(workshop, lease) == [("truncated", 80)]


def test_what_could_not_be_told_is_told_by_the_next_look(workshop: Workshop) -> None:
    lease = lease_of(workshop)
    report(workshop, lease, TRUNCATED[:80])
    watch = LearningWatch(workshop.sessions, lease)

    def be_away(_: Session) -> None:
        raise OperationalError("COMMIT", {}, ConnectionError("away"))

    database_event.listen(workshop.sessions, "before_commit", be_away)
    with pytest.raises(OperationalError):
        watch.look()
    database_event.remove(workshop.sessions, "before_commit", be_away)
    assert raised(workshop, lease) == []
    watch.look()
    assert raised(workshop, lease) == [("truncated", 80)]


def test_without_the_lease_nothing_is_told(workshop: Workshop) -> None:
    lease = lease_of(workshop)
    report(workshop, lease, TRUNCATED[:80])
    expire(workshop.sessions, lease.job_id)
    with pytest.raises(LeaseLost):
        LearningWatch(workshop.sessions, lease).look()
    assert raised(workshop, lease) == []


def test_what_has_healed_is_told_and_told_again_when_it_comes_back(workshop: Workshop) -> None:
    lease = lease_of(workshop)
    watch = LearningWatch(workshop.sessions, lease)
    sick = TRUNCATED[-20:]
    healthy = run_of(seed=5).steps
    steps = [*healthy[:20], *sick, *healthy[20:60], *sick]
    for number, one in enumerate(steps, start=1):
        report(workshop, lease, [replace(one, step=number)])
        watch.look()
    events = [
        (event.code, event.level, event.data["finding"])
        for event in read_events(workshop.sessions, lease.job_id)
        if event.code.startswith("finding_")
    ]
    assert events == [
        ("finding_raised", "warn", "truncated"),
        ("finding_healed", "info", "truncated"),
        ("finding_raised", "warn", "truncated"),
    ]
    (healed,) = told(workshop, lease, "finding_healed")
    assert 40 + HEALED_AFTER_STEPS <= healed.data["step"] < 70
