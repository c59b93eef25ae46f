"""No grading worker, no broker: uploads go through, trials are told to come again, and nobody waits long."""

import base64
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from fastapi.testclient import TestClient
from sqlalchemy import select

from app.graders import tasks
from app.rewards.reports import Reports
from core.db import grading_tasks
from core.db.models import GradingTask
from core.db.session import Sessions
from core.queue import GRADING_QUEUE, GRADING_TASK
from core.settings import Settings
from tests.api.forms import REWARD
from tests.polling import wait_until
from tests.ports import free_port

RUN = "/v1/fine_tuning/alpha/graders/run"
BODY = {
    "grader": {"type": "python", "source": "def grade(sample, item):\n    return 1.0\n"},
    "model_sample": "4",
}


@pytest.fixture
def broker(valkey_url: str):
    with redis.Redis.from_url(valkey_url) as client:
        client.flushall()
        yield client


def all_tasks(sessions: Sessions) -> list[GradingTask]:
    with sessions() as session:
        return list(session.scalars(select(GradingTask).order_by(GradingTask.id)))


def error_of(response: Any) -> dict[str, Any]:
    return dict(response.json()["error"])


def test_a_trial_that_nobody_answers_is_503_and_is_taken_back(client: TestClient, sessions: Sessions) -> None:
    response = client.post(RUN, json=BODY)
    assert (response.status_code, error_of(response)["code"]) == (503, "grading_worker_away")
    assert response.headers["Retry-After"]
    assert "grading worker" in error_of(response)["fix"]
    (task,) = all_tasks(sessions)
    assert (task.status, task.error["code"]) == ("failed", "withdrawn")


def test_a_trial_is_hinted_at_once_as_celery_reads_it(client: TestClient, sessions: Sessions, broker) -> None:
    client.post(RUN, json=BODY)
    (message,) = (json.loads(item) for item in broker.lrange(GRADING_QUEUE, 0, -1))
    assert message["headers"]["task"] == GRADING_TASK
    assert json.loads(base64.b64decode(message["body"]))[0] == [all_tasks(sessions)[0].id]


def test_hints_do_not_pile_up_where_nobody_takes_them(client: TestClient, broker, monkeypatch) -> None:
    monkeypatch.setattr("app.hints.MAX_WAITING", 2)
    for _ in range(4):
        client.post(RUN, json=BODY)
    assert broker.llen(GRADING_QUEUE) == 2


def test_an_upload_needs_no_grading_worker(client: TestClient) -> None:
    reward = client.post("/v1/rewards", json={"name": "exact", "source": REWARD})
    assert (reward.status_code, reward.json()["report_status"], reward.json()["report"]) == (201, "pending", None)
    report = client.get(f"/v1/rewards/{reward.json()['id']}/report")
    assert (report.status_code, report.json()["report_status"]) == (200, "pending")


def test_what_the_worker_could_not_do_is_told_with_its_fix(client: TestClient, sessions: Sessions) -> None:
    reward = client.post("/v1/rewards", json={"name": "exact", "source": REWARD}).json()
    with sessions.begin() as session:
        task = session.scalars(select(GradingTask)).one()
        task.status = "failed"
        task.error = {"code": "sandbox_unavailable", "message": "No.", "param": None, "fix": "Do this."}
    report = client.get(f"/v1/rewards/{reward['id']}/report").json()
    assert report["report_status"] == "failed"
    assert report["report_error"] == {"code": "sandbox_unavailable", "message": "No.", "fix": "Do this."}
    again = client.post(f"/v1/rewards/{reward['id']}/versions", json={"source": REWARD}).json()
    assert again["report_status"] == "pending"
    assert len(all_tasks(sessions)) == 2


class TestWithoutABroker:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return Settings(_env_file=None, **{**settings.model_dump(), "broker_url": f"redis://127.0.0.1:{free_port()}/0"})

    def test_the_row_is_there_for_the_dispatcher(self, client: TestClient, sessions: Sessions) -> None:
        assert client.post("/v1/rewards", json={"name": "exact", "source": REWARD}).status_code == 201
        assert [task.status for task in all_tasks(sessions)] == ["queued"]

    def test_after_the_first_hint_that_fails_no_other_is_tried(
        self, client: TestClient, sessions: Sessions, caplog: pytest.LogCaptureFixture
    ) -> None:
        for name in ("one", "two"):
            client.post("/v1/rewards", json={"name": name, "source": REWARD})
        caplog.clear()
        reports = Reports(sessions, client.app.state.resources.grading, wait_s=0.0)
        assert len(reports.wait(all_tasks(sessions))) == 2
        assert sum("hint_not_sent" in record.getMessage() for record in caplog.records) == 1


class TestWithASilentBroker:
    @pytest.fixture
    def settings(self, settings: Settings) -> Iterator[Settings]:
        """It takes connections, and says nothing; without a bound the request would never be answered."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
            yield Settings(_env_file=None, **{**settings.model_dump(), "broker_url": url})

    def test_a_request_is_answered_all_the_same(self, client: TestClient) -> None:
        assert client.post("/v1/rewards", json={"name": "exact", "source": REWARD}).status_code == 201
        assert error_of(client.post(RUN, json=BODY))["code"] == "grading_worker_away"


class TestWithAWaitThatIsLong:
    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"grader_wait_s": 5.0})

    @pytest.mark.parametrize("limit", ["MAX_WAITING", "MAX_WAITING_OF_A_TENANT"])
    def test_waiting_requests_leave_room_for_others(
        self, client: TestClient, sessions: Sessions, monkeypatch: pytest.MonkeyPatch, limit: str
    ) -> None:
        """Sixteen may wait, eight of one tenant, here one: each holds a thread; all together would be the server."""
        monkeypatch.setattr(tasks, limit, 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.post, RUN, json=BODY)
            wait_until(lambda: all_tasks(sessions), what="the first request waits")
            refused = client.post(RUN, json=BODY)
            assert (refused.status_code, error_of(refused)["code"]) == (503, "grading_busy")
            assert error_of(waiting.result())["code"] == "grading_worker_away"
        assert len(all_tasks(sessions)) == 1, "who is refused leaves no task"

    def test_a_task_that_a_worker_has_begun_is_too_slow_and_not_a_worker_that_is_away(
        self, client: TestClient, sessions: Sessions
    ) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.post, RUN, json=BODY)
            wait_until(lambda: all_tasks(sessions), what="the request waits")
            (task,) = all_tasks(sessions)
            with sessions.begin() as session:
                assert grading_tasks.claim(session, task.id, ttl_s=60, most_of_a_tenant=1, most_long=9) is not None
            error = error_of(waiting.result())
        assert (error["code"], "PODIUM_GRADER_WAIT_S" in error["fix"]) == ("grading_too_slow", True)
        (task,) = all_tasks(sessions)
        assert (task.status, task.error["code"]) == ("running", "withdrawn")
