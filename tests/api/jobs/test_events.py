"""The event log of a job, both ways through it, and its rollouts and checkpoints."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.jobs.runs import ADAPTER, Run


def test_events_are_newest_first_in_openais_shape(client: TestClient, run: Run) -> None:
    reply = client.get(f"{run.path}/events").json()
    assert reply["object"] == "list"
    newest, oldest = reply["data"]
    assert (newest["code"], oldest["code"]) == ("claimed", "queued")
    assert newest["id"].startswith("ftevent-")
    expected = {
        "object": "fine_tuning.job.event",
        "level": "info",
        "type": "message",
        "message": "A worker took the job.",
        "data": {"from": "queued", "to": "running", "owner": "test"},
        "seq": 2,
        "attempt": 1,
    }
    assert {key: newest[key] for key in expected} == expected


def test_after_goes_back_in_time(client: TestClient, run: Run) -> None:
    for number in range(3):
        run.note("noted", f"note {number}")
    first = client.get(f"{run.path}/events", params={"limit": 2}).json()
    assert [event["seq"] for event in first["data"]] == [5, 4]
    assert first["has_more"] is True
    rest = client.get(f"{run.path}/events", params={"limit": 5, "after": first["last_id"]}).json()
    assert [event["seq"] for event in rest["data"]] == [3, 2, 1]
    assert rest["has_more"] is False


def test_after_seq_follows_without_a_gap_across_attempts(client: TestClient, run: Run) -> None:
    seen = client.get(f"{run.path}/events", params={"after_seq": 0}).json()["data"]
    assert [event["seq"] for event in seen] == [1, 2]
    run.again().note("noted", "in the second attempt")
    later = client.get(f"{run.path}/events", params={"after_seq": 2}).json()["data"]
    assert [(event["seq"], event["attempt"]) for event in later] == [(3, 1), (4, 2), (5, 2)]
    assert client.get(f"{run.path}/events", params={"after_seq": 5}).json()["data"] == []


def test_a_cursor_of_another_job_is_not_found(client: TestClient, run: Run) -> None:
    response = client.get(f"{run.path}/events", params={"after": "ftevent-missing"})
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "after"


def test_the_two_directions_exclude_each_other(client: TestClient, run: Run) -> None:
    response = client.get(f"{run.path}/events", params={"after": "ftevent-1", "after_seq": 1})
    assert response.status_code == 422


@pytest.mark.parametrize("name", ["events", "metrics", "rollouts?step=1", "checkpoints"])
def test_what_a_job_reports_is_its_owners_alone(other_tenant: TestClient, client: TestClient, run: Run, name: str):
    assert client.get(f"{run.path}/{name}").status_code == 200
    response = other_tenant.get(f"{run.path}/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "job_not_found"


def test_rollouts_of_a_step_come_in_the_order_of_its_batch(client: TestClient, run: Run) -> None:
    run.rollouts(1, 5)
    first = client.get(f"{run.path}/rollouts", params={"step": 1, "limit": 3}).json()
    assert [rollout["index"] for rollout in first["data"]] == [0, 1, 2]
    assert first["has_more"] is True
    rest = client.get(f"{run.path}/rollouts", params={"step": 1, "after": first["last_id"]}).json()
    assert [rollout["index"] for rollout in rest["data"]] == [3, 4]
    assert rest["data"][0]["grades"] == {"exact": {"outcome": "scored", "value": 1.0, "error": None}}
    assert client.get(f"{run.path}/rollouts", params={"step": 2}).json()["data"] == []


def test_a_step_must_be_named_for_rollouts(client: TestClient, run: Run) -> None:
    assert client.get(f"{run.path}/rollouts").json()["error"]["param"] == "step"
    assert client.get(f"{run.path}/rollouts", params={"step": 1, "after": "1-99"}).status_code == 404


def test_checkpoints_are_openais_objects_with_digests(client: TestClient, run: Run) -> None:
    run.checkpoint(1, ADAPTER)
    run.checkpoint(2, ADAPTER, is_best=True)
    reply = client.get(f"{run.path}/checkpoints", params={"limit": 1}).json()
    (newest,) = reply["data"]
    assert reply["has_more"] is True
    expected: dict[str, Any] = {
        "object": "fine_tuning.job.checkpoint",
        "fine_tuning_job_id": run.job_id,
        "fine_tuned_model_checkpoint": f"ft:podium/tiny::{run.job_id}:ckpt-step-2",
        "step_number": 2,
        "metrics": {"step": 2, "reward": 0.5},
        "is_best": True,
        "attempt": 1,
    }
    assert {key: newest[key] for key in expected} == expected
    assert [file["name"] for file in newest["files"]] == list(ADAPTER)
    assert all(len(file["sha256"]) == 64 for file in newest["files"])
    rest = client.get(f"{run.path}/checkpoints", params={"after": newest["id"]}).json()["data"]
    assert [checkpoint["step_number"] for checkpoint in rest] == [1]
    assert client.get(run.path).json()["progress"]["durable_step"] == 2
