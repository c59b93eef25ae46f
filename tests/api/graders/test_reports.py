"""Reports: every version is probed when it comes, on the data that is named; dry runs repeat what was flagged."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from core.db.models import GradingTask
from core.db.session import Sessions
from core.reward_report import ProbeReport, ProbeStatus
from core.settings import Settings
from tests.api.forms import REWARD, problems, upload
from tests.api.jobs.conftest import MODEL, rows
from tests.model_folders import write_model

pytestmark = pytest.mark.usefixtures("grading_worker")

PAYS_FOR_ALL = "def reward(completion, answer):\n    return 1.0\n"
PAYS_FOR_LISTS = (
    "def reward(completion, answer):\n    return float(isinstance(completion, list) or completion == answer)\n"
)
DOES_NOT_LOAD = "1 / 0\ndef reward(completion, answer):\n    return 1.0\n"
JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def settings(settings: Settings, tmp_path) -> Settings:
    return settings.model_copy(update={"models": {MODEL: write_model(tmp_path / "model")}, "allow_hub_models": False})


@pytest.fixture
def data(client: TestClient) -> str:
    """Twenty rows with a prompt and an answer."""
    return str(upload(client, rows(20)).json()["id"])


def create(client: TestClient, source: str = REWARD, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/rewards", json={"name": "exact", "source": source, **fields})
    assert response.status_code == 201, response.text
    return dict(response.json())


def flags(report: dict[str, Any]) -> set[str]:
    return {flag["code"] for flag in report["flags"]}


def chats(count: int, *, first: int = 0) -> bytes:
    chat = ({"prompt": [{"role": "user", "content": f"{n}?"}], "answer": str(n)} for n in range(first, first + count))
    return "".join(json.dumps(row) + "\n" for row in chat).encode()


def preview(
    client: TestClient, data: str, *rewards: str, held_out_rows: bytes = rows(8, first=100), **fields: Any
) -> Any:
    method = {"type": "grpo", "grpo": {"rewards": [{"reward": reward, **fields} for reward in rewards]}}
    held_out = upload(client, held_out_rows).json()["id"]
    body = {"model": MODEL, "training_file": data, "validation_file": held_out, "method": method}
    return client.post(f"{JOBS}?dry_run=true", json=body), body


def test_a_new_reward_comes_with_its_report(client: TestClient, data: str) -> None:
    reward = create(client, training_file=data)
    assert (reward["report_status"], reward["report_error"]) == ("done", None)
    assert (reward["report"]["loads"], reward["report"]["synthetic"]) == (True, False)
    shown = client.get(f"/v1/rewards/{reward['id']}/report").json()
    assert shown["report"] == reward["report"]
    assert (shown["object"], shown["training_file"], shown["version"]) == ("reward.report", data, 1)
    assert client.get(f"/v1/rewards/{reward['id']}/versions/1/report").json() == shown


def test_without_data_the_rows_are_made_up(client: TestClient) -> None:
    assert create(client)["report"]["synthetic"] is True


def test_a_form_may_name_the_data_too(client: TestClient, data: str) -> None:
    files = {"file": ("exact.py", REWARD.encode())}
    reward = client.post("/v1/rewards", files=files, data={"training_file": data}).json()
    assert client.get(f"/v1/rewards/{reward['id']}/report").json()["training_file"] == data


def test_a_reward_that_pays_for_everything_is_flagged(client: TestClient, data: str) -> None:
    report = create(client, PAYS_FOR_ALL, training_file=data)["report"]
    assert report["loads"] is True
    assert {"pays_for_empty", "always_the_same"} & flags(report)


def test_a_report_on_other_data_is_another_report(client: TestClient, data: str) -> None:
    reward = create(client, training_file=data)
    other = str(upload(client, rows(5, first=50)).json()["id"])
    path = f"/v1/rewards/{reward['id']}"
    again = client.post(f"{path}/versions", json={"source": REWARD, "training_file": other})
    assert (again.status_code, again.json()["version"], again.json()["report_status"]) == (200, 1, "done")
    for file_id in (data, other):
        shown = client.get(f"{path}/report", params={"training_file": file_id}).json()
        assert shown["training_file"] == file_id
    assert client.get(f"{path}/report").json()["training_file"] == other


def test_data_of_another_tenant_cannot_be_probed_with(client: TestClient, other_tenant: TestClient, data: str) -> None:
    body = {"name": "exact", "source": REWARD, "training_file": data}
    response = other_tenant.post("/v1/rewards", json=body)
    assert (response.status_code, problems(response)) == (404, {"training_file": "file_not_found"})
    assert other_tenant.get("/v1/rewards").json()["data"] == []


def test_a_report_is_its_tenants(client: TestClient, other_tenant: TestClient) -> None:
    reward = create(client)
    response = other_tenant.get(f"/v1/rewards/{reward['id']}/report")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "reward_not_found")


def test_data_that_was_not_probed_with_has_no_report(client: TestClient, data: str) -> None:
    reward = create(client)
    response = client.get(f"/v1/rewards/{reward['id']}/report", params={"training_file": data})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "report_not_found")


def test_a_repeated_create_has_the_same_answer_with_the_report(client: TestClient, data: str) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {"name": "exact", "source": REWARD, "training_file": data}
    first = client.post("/v1/rewards", json=body, headers=headers)
    second = client.post("/v1/rewards", json=body, headers=headers)
    assert first.json() == second.json()
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.json()["report_status"] == "done"


def test_a_dry_run_repeats_the_flags_for_the_jobs_own_data(client: TestClient, data: str) -> None:
    reward = create(client, PAYS_FOR_ALL)["id"]
    response, _ = preview(client, data, reward)
    assert response.status_code == 200, response.text
    report = client.get(f"/v1/rewards/{reward}/report", params={"training_file": data}).json()["report"]
    warned = {warning["code"] for warning in response.json()["warnings"] if warning["field"].startswith("method.grpo")}
    assert flags(report) <= warned


def test_a_reward_that_does_not_load_is_refused_in_the_dry_run_and_at_submit(client: TestClient, data: str) -> None:
    reward = create(client, DOES_NOT_LOAD)
    assert reward["report"]["loads"] is False
    response, body = preview(client, data, reward["id"])
    for refused in (response, client.post(JOBS, json=body)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "reward_does_not_load")
        assert problems(refused) == {"method.grpo.rewards[0]": "reward_does_not_load"}
        assert "ZeroDivisionError" in refused.json()["error"]["message"]


def test_a_dry_run_asks_again_about_a_reward_that_did_not_load(
    client: TestClient, sessions: Sessions, data: str
) -> None:
    reward = create(client, training_file=data)
    body = preview(client, data, reward["id"])[1]
    gone = ProbeReport(status=ProbeStatus.FAILED, loads=False, load_error="ImportError: x", load_raised=True, seconds=1)
    with sessions.begin() as session:
        session.execute(update(GradingTask).values(answer=gone.model_dump(mode="json")))
    assert client.post(JOBS, json=body).json()["error"]["code"] == "reward_does_not_load"
    assert client.post(f"{JOBS}?dry_run=true", json=body).status_code == 200
    assert client.post(JOBS, json=body).status_code == 201


def test_a_reward_whose_process_crashed_is_warned_of_and_taken(client: TestClient, data: str) -> None:
    reward = create(client, "import os\nos._exit(3)\n" + REWARD, training_file=data)
    assert (reward["report"]["loads"], reward["report"]["load_raised"]) == (False, False)
    response, body = preview(client, data, reward["id"])
    assert response.status_code == 200, response.text
    assert "does_not_load" in {warning["code"] for warning in response.json()["warnings"]}
    assert client.post(JOBS, json=body).status_code == 201


def test_a_reward_in_another_form_has_a_report_of_its_own(client: TestClient) -> None:
    """In its own form it gets texts; in the job's it gets messages, and pays for all of them."""
    data = str(upload(client, chats(20, first=20)).json()["id"])
    reward = create(client, PAYS_FOR_LISTS, training_file=data)["id"]
    previews = [
        preview(client, data, reward, held_out_rows=chats(8), **fields)[0].json()
        for fields in ({}, {"form": "verifiers"})
    ]
    warned = [{warning["code"] for warning in shown["warnings"]} for shown in previews]
    assert "always_the_same" not in warned[0]
    assert "always_the_same" in warned[1]


def test_a_reward_that_was_mended_is_accepted(client: TestClient, data: str) -> None:
    reward = create(client, DOES_NOT_LOAD)["id"]
    client.post(f"/v1/rewards/{reward}/versions", json={"source": REWARD})
    response, body = preview(client, data, reward)
    assert response.status_code == 200, response.text
    assert client.post(JOBS, json=body).status_code == 201
