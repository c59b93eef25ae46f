"""The rows of one moment, and what holds of them at any moment, whatever happened before."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping, select
from sqlalchemy.orm import Session

from core.db.models import Base, Checkpoint, Job, JobAttempt, JobEvent, now
from core.ids import JobId
from core.status import TRANSITIONS, JobStatus


@dataclass(frozen=True)
class Ledger:
    """All rows of one moment."""

    jobs: dict[JobId, RowMapping]
    events: list[RowMapping]
    attempts: list[RowMapping]
    checkpoints: list[RowMapping]

    @classmethod
    def read(cls, session: Session) -> "Ledger":
        stands = (Job.lease_expires_at > now()).label("is_leased")
        rows = session.execute(select(Job.__table__, stands)).mappings()
        return cls(
            {row["id"]: row for row in rows},
            cls._rows(session, JobEvent, JobEvent.job_id, JobEvent.seq),
            cls._rows(session, JobAttempt, JobAttempt.job_id, JobAttempt.attempt),
            cls._rows(session, Checkpoint, Checkpoint.id),
        )

    @staticmethod
    def _rows(session: Session, model: type[Base], *order: Any) -> list[RowMapping]:
        return list(session.execute(select(model.__table__).order_by(*order)).mappings())

    def of(self, rows: list[RowMapping], job_id: JobId) -> list[RowMapping]:
        return [row for row in rows if row["job_id"] == job_id]


def facts_of(row: RowMapping) -> dict[str, Any]:
    names = ("status", "attempt", "failures", "preemptions", "durable_step", "furthest_durable_step")
    return {name: row[name] for name in names} | {
        "reason": row["status_reason"],
        "wants_cancel": row["cancel_requested_at"] is not None,
        "wants_pause": row["pause_requested_at"] is not None,
        "is_leased": bool(row["is_leased"]),
    }


def check_row(row: RowMapping) -> None:
    """What holds of any job, at any time."""
    status = row["status"]
    if status is not JobStatus.RUNNING:
        assert [row[name] for name in ("stage", "activity", "lease_owner", "lease_expires_at")] == [None] * 4
    else:
        assert None not in (row["stage"], row["lease_owner"], row["lease_expires_at"])
    assert (row["finished_at"] is not None) is status.is_terminal
    assert (row["started_at"] is not None) is (row["attempt"] > 0)
    assert (row["durable_step"] or 0) <= (row["furthest_durable_step"] or 0)
    if status is JobStatus.QUEUED:
        assert row["cancel_requested_at"] is row["pause_requested_at"] is None, "a wish for a queued job is granted"
    if status is JobStatus.PAUSED:
        assert row["cancel_requested_at"] is None
        assert row["pause_requested_at"] is not None


def check_events(row: RowMapping, events: list[RowMapping]) -> None:
    """`seq` has no gap, and the events alone tell the job's way: legal changes, and one end at most."""
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert row["next_event_seq"] == len(events) + 1
    numbers = [event["attempt"] for event in events]
    assert numbers == sorted(numbers)
    assert [event["attempt"] for event in events if event["code"] == "claimed"] == list(range(1, row["attempt"] + 1))
    status = JobStatus.QUEUED
    for change in (event["data"] for event in events if "to" in event["data"]):
        assert change["from"] == status
        assert JobStatus(change["to"]) in TRANSITIONS[status]
        status = JobStatus(change["to"])
    assert status is row["status"]
    ends = [event for event in events if "to" in event["data"] and JobStatus(event["data"]["to"]).is_terminal]
    assert len(ends) == int(status.is_terminal)
