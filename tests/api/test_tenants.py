"""What belongs to somebody else does not exist: the same answer, for every operation that takes an id."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from core.db.session import Sessions
from core.ids import new_file_id, new_job_id, new_reward_id, new_signal_probe_id
from core.settings import Settings
from tests.api.conftest import THEIRS
from tests.api.forms import REWARD, upload
from tests.factories import queued_job, queued_probe

MISSING = {
    "file_id": new_file_id(),
    "job_id": new_job_id(),
    "reward_id": new_reward_id(),
    "probe_id": new_signal_probe_id(),
}
PARTS = {"version": "1", "step": "1", "name": "results.json", "task_id": "gtask-1"}
"""Path parameters that name a part of the owned thing."""
QUERIES = {"listJobRollouts": {"step": "1"}}
BODIES: dict[str, Any] = {"createRewardVersion": {"source": REWARD}, "rescoreJob": {"reward": new_reward_id()}}
PUBLIC = {"getModel"}
"""Its ids are names of models; the jobs' own tests ask for a foreign adapter."""
OPERATIONS = [
    (operation["operationId"], method, path)
    for path, methods in create_app(Settings(_env_file=None)).openapi()["paths"].items()
    for method, operation in methods.items()
    if "{" in path and operation["operationId"] not in PUBLIC
]


@pytest.fixture
def theirs(other_tenant: TestClient, sessions: Sessions) -> dict[str, str]:
    """One thing of each kind, which the other tenant owns."""
    return {
        "file_id": upload(other_tenant).json()["id"],
        "reward_id": other_tenant.post("/v1/rewards", json={"name": "a", "source": REWARD}).json()["id"],
        "job_id": queued_job(sessions, tenant_id=THEIRS),
        "probe_id": queued_probe(sessions, tenant_id=THEIRS),
    }


def test_operations_with_an_id_are_found():
    assert {path.split("/")[2] for _, _, path in OPERATIONS} == {"files", "rewards", "fine_tuning", "signal_probes"}
    assert len(OPERATIONS) >= 15


@pytest.mark.parametrize(("name", "method", "path"), OPERATIONS, ids=[name for name, _, _ in OPERATIONS])
def test_foreign_and_missing_are_the_same_404(
    client: TestClient, theirs: dict[str, str], name: str, method: str, path: str
):
    foreign = ask(client, name, method, path, theirs)
    assert foreign == ask(client, name, method, path, MISSING)
    assert foreign["code"] in {"file_not_found", "job_not_found", "reward_not_found", "signal_probe_not_found"}


def ask(client: TestClient, name: str, method: str, path: str, ids: dict[str, str]) -> dict[str, Any]:
    """The error, without what the client itself said: its request and the id that it asked for."""
    url = path.format(**ids, **PARTS)
    response = client.request(method, url, params=QUERIES.get(name), json=BODIES.get(name))
    assert response.status_code == 404
    error: dict[str, Any] = response.json()["error"]
    del error["request_id"]
    for asked in ids.values():
        error["message"] = error["message"].replace(asked, "ID")
    return error


@pytest.mark.parametrize("collection", ["/v1/files", "/v1/rewards", "/v1/fine_tuning/jobs", "/v1/signal_probes"])
def test_lists_show_only_what_is_owned(client: TestClient, theirs: dict[str, str], collection: str):
    assert theirs
    assert client.get(collection).json()["data"] == []


def test_cursor_of_somebody_else_shows_nothing_of_theirs(client: TestClient, theirs: dict[str, str]):
    ours = upload(client).json()["id"]
    rising = client.get(f"/v1/files?order=asc&after={theirs['file_id']}").json()["data"]
    assert {file["id"] for file in rising} <= {ours}


def test_what_was_refused_to_others_is_untouched(client: TestClient, other_tenant: TestClient, theirs: dict[str, str]):
    client.delete(f"/v1/files/{theirs['file_id']}")
    client.post(f"/v1/rewards/{theirs['reward_id']}/versions", json={"source": REWARD + "#"})
    client.post(f"/v1/fine_tuning/jobs/{theirs['job_id']}/cancel")
    assert other_tenant.get(f"/v1/files/{theirs['file_id']}").status_code == 200
    assert other_tenant.get(f"/v1/rewards/{theirs['reward_id']}").json()["version"] == 1
    assert other_tenant.get(f"/v1/fine_tuning/jobs/{theirs['job_id']}").json()["status"] == "queued"
