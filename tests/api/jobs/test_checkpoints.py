"""Which checkpoints of a job there are, and which of them stay for good."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.jobs.runs import ADAPTER, Run


@pytest.fixture
def path(run: Run) -> str:
    """Of the checkpoints of a job that has saved four."""
    for step in (1, 2, 3, 4):
        run.checkpoint(step, ADAPTER)
    return f"{run.path}/checkpoints"


def steps(client: TestClient, path: str) -> list[int]:
    return [checkpoint["step_number"] for checkpoint in client.get(path).json()["data"]]


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = dict(response.json()["error"])
    assert error["fix"]
    return error


def test_what_retention_gave_up_or_what_is_damaged_is_not_listed(client: TestClient, run: Run, path: str) -> None:
    run.corrupt(4)
    run.collect(keep=2)
    assert steps(client, path) == [3, 2]
    assert client.get(run.path).json()["progress"]["durable_step"] == 3


def test_a_pinned_checkpoint_stays(client: TestClient, run: Run, path: str) -> None:
    assert [checkpoint["pinned"] for checkpoint in client.get(path).json()["data"]] == [False] * 4
    for _ in range(2):
        response = client.post(f"{path}/1/pin")
        assert response.status_code == 200
        assert (response.json()["step_number"], response.json()["pinned"]) == (1, True)
    run.collect(keep=1)
    assert steps(client, path) == [4, 1]


def test_an_unpinned_checkpoint_is_left_to_retention_again(client: TestClient, run: Run, path: str) -> None:
    client.post(f"{path}/1/pin")
    for _ in range(2):
        assert client.post(f"{path}/1/unpin").json()["pinned"] is False
    run.collect(keep=1)
    assert steps(client, path) == [4]


@pytest.mark.parametrize("action", ["pin", "unpin"])
def test_what_is_not_there_cannot_be_pinned_and_says_why(client: TestClient, run: Run, path: str, action: str) -> None:
    run.corrupt(4)
    run.collect(keep=1)
    for step, why in ((9, "no durable checkpoint"), (4, "damaged"), (1, "given up")):
        error = error_of(client.post(f"{path}/{step}/{action}"), 404)
        assert (error["code"], error["param"]) == ("checkpoint_not_found", "step")
        assert why in error["message"]


@pytest.mark.parametrize("action", ["pin", "unpin"])
def test_checkpoints_of_others_are_not_there(other_tenant: TestClient, path: str, action: str) -> None:
    assert error_of(other_tenant.post(f"{path}/1/{action}"), 404)["code"] == "job_not_found"


def test_a_cursor_that_is_not_of_this_job_is_not_found(client: TestClient, path: str) -> None:
    error = error_of(client.get(path, params={"after": "ftckpt-missing"}), 404)
    assert (error["code"], error["param"]) == ("checkpoint_not_found", "after")


def test_a_cursor_stays_good_when_its_checkpoint_is_given_up(client: TestClient, run: Run, path: str) -> None:
    client.post(f"{path}/1/pin")
    first = client.get(path, params={"limit": 3}).json()
    run.collect(keep=1)
    rest = client.get(path, params={"after": first["last_id"]}).json()["data"]
    assert [checkpoint["step_number"] for checkpoint in rest] == [1]


def test_the_adapter_of_a_checkpoint_that_was_given_up_says_why_it_is_gone(
    client: TestClient, run: Run, path: str
) -> None:
    run.collect(keep=1)
    assert "given up" in error_of(client.get(f"{path}/1/adapter"), 404)["message"]
