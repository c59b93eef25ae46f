"""Pause and resume over HTTP, in every status a job can be in; a cancel beside them."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.db.session import Sessions
from core.storage.store import ObjectStore
from tests.api.jobs.runs import ADAPTER, Run

JOBS = "/v1/fine_tuning/jobs"
Submit = Callable[..., dict[str, Any]]


def ask(client: TestClient, path: str, wish: str) -> dict[str, Any]:
    response = client.post(f"{path}/{wish}")
    assert response.status_code == 200, response.text
    return dict(response.json())


def refusal(client: TestClient, path: str, wish: str) -> dict[str, Any]:
    """The error of a state conflict, which no client tries again; the job is as it was."""
    before = client.get(path).json()
    response = client.post(f"{path}/{wish}")
    assert response.status_code == 409, response.text
    assert response.headers["x-should-retry"] == "false"
    assert client.get(path).json() == before
    error = dict(response.json()["error"])
    assert error["param"] == "job_id"
    assert error["fix"]
    return error


def codes(client: TestClient, path: str) -> list[str]:
    return [event["code"] for event in client.get(f"{path}/events", params={"after_seq": 0}).json()["data"]]


@pytest.fixture
def path(submit: Submit) -> str:
    """Of a queued job."""
    return f"{JOBS}/{submit()['id']}"


def test_a_queued_job_is_paused_at_once(client: TestClient, path: str) -> None:
    job = ask(client, path, "pause")
    assert (job["object"], job["status"], job["status_reason"]) == ("fine_tuning.job", "paused", "user_paused")
    assert job["pause_requested_at"] is not None
    assert job["finished_at"] is None
    assert client.get(path).json() == job


def test_a_running_job_keeps_its_status_until_its_trainer_has_saved(client: TestClient, run: Run) -> None:
    assert client.get(run.path).json()["pause_requested_at"] is None
    run.checkpoint(1, ADAPTER)
    for _ in range(2):
        job = ask(client, run.path, "pause")
        assert job["status"] == "running"
        assert job["pause_requested_at"] is not None
        assert job["progress"]["durable_step"] == 1
    assert codes(client, run.path).count("pause_requested") == 1
    run.pause()
    assert client.get(run.path).json()["status"] == "paused"


def test_pausing_a_paused_job_changes_nothing(client: TestClient, path: str) -> None:
    first = ask(client, path, "pause")
    assert ask(client, path, "pause") == first
    assert codes(client, path) == ["queued", "paused"]


def test_a_paused_job_is_queued_again(client: TestClient, path: str) -> None:
    ask(client, path, "pause")
    job = ask(client, path, "resume")
    assert (job["status"], job["status_reason"], job["pause_requested_at"]) == ("queued", None, None)
    assert codes(client, path) == ["queued", "paused", "resume_requested"]


def test_a_job_that_is_paused_goes_on_on_any_worker(
    client: TestClient, run: Run, sessions: Sessions, store: ObjectStore
) -> None:
    run.checkpoint(1, ADAPTER)
    ask(client, run.path, "pause")
    run.pause()
    ask(client, run.path, "resume")
    again = Run.claim(sessions, store, run.job_id)
    job = client.get(again.path).json()
    assert (job["status"], job["attempt"], job["pause_requested_at"]) == ("running", 2, None)


def test_a_pause_that_has_not_taken_effect_is_taken_back(client: TestClient, run: Run) -> None:
    ask(client, run.path, "pause")
    job = ask(client, run.path, "resume")
    assert (job["status"], job["pause_requested_at"]) == ("running", None)
    assert codes(client, run.path)[-1] == "pause_withdrawn"


def test_a_job_that_nobody_paused_is_not_resumed(client: TestClient, path: str, run: Run) -> None:
    for one in (path, run.path):
        assert refusal(client, one, "resume")["code"] == "job_not_paused"


@pytest.mark.parametrize("end", [Run.succeed, Run.fail])
def test_a_job_that_has_ended_is_neither_paused_nor_resumed(
    client: TestClient, run: Run, end: Callable[[Run], None]
) -> None:
    end(run)
    assert refusal(client, run.path, "pause")["code"] == "job_not_pausable"
    assert refusal(client, run.path, "resume")["code"] == "job_not_paused"


def test_a_cancelled_job_is_neither_paused_nor_resumed(client: TestClient, path: str) -> None:
    ask(client, path, "cancel")
    assert "been cancelled" in refusal(client, path, "pause")["message"]
    assert refusal(client, path, "resume")["code"] == "job_not_paused"


def test_a_paused_job_is_cancelled_at_once(client: TestClient, path: str) -> None:
    ask(client, path, "pause")
    job = ask(client, path, "cancel")
    assert (job["status"], job["status_reason"]) == ("cancelled", "user_cancelled")


def test_a_running_job_may_be_asked_both_and_the_cancel_wins(client: TestClient, run: Run) -> None:
    ask(client, run.path, "pause")
    job = ask(client, run.path, "cancel")
    assert job["pause_requested_at"] is not None
    assert job["cancel_requested_at"] is not None
    run.pause()
    assert client.get(run.path).json()["status"] == "cancelled"


@pytest.mark.parametrize("wish", ["pause", "resume"])
def test_jobs_of_others_and_missing_jobs_are_the_same_404(other_tenant: TestClient, path: str, wish: str) -> None:
    theirs, missing = (other_tenant.post(f"{one}/{wish}") for one in (path, f"{JOBS}/ftjob-missing"))
    assert (theirs.status_code, missing.status_code) == (404, 404)
    assert theirs.json()["error"]["code"] == missing.json()["error"]["code"] == "job_not_found"


def test_paused_jobs_can_be_listed(client: TestClient, path: str) -> None:
    ask(client, path, "pause")
    assert len(client.get(JOBS, params={"status": "paused"}).json()["data"]) == 1
    assert client.get(JOBS, params={"status": "queued"}).json()["data"] == []
