"""`/v1/models`: the operator's base models, and what the caller's jobs have trained."""

from fastapi.testclient import TestClient

from core.settings import Settings
from tests.api.jobs.runs import Run


def test_base_models_are_listed_in_openais_shape(client: TestClient) -> None:
    reply = client.get("/v1/models").json()
    assert reply["object"] == "list"
    (model,) = reply["data"]
    assert {key: model[key] for key in ("id", "object", "owned_by")} == {
        "id": "podium/tiny",
        "object": "model",
        "owned_by": "operator",
    }
    assert client.get("/v1/models/podium/tiny").json() == model
    assert client.get("/v1/models/podium%2Ftiny").json() == model


def test_a_finished_job_is_a_model_of_its_owner(client: TestClient, other_tenant: TestClient, run: Run) -> None:
    name = f"ft:podium/tiny::{run.job_id}"
    assert client.get(f"/v1/models/{name}").status_code == 404
    run.succeed()
    base, trained = client.get("/v1/models").json()["data"]
    assert (trained["id"], trained["owned_by"], trained["job_id"]) == (name, "tenant-ours", run.job_id)
    assert trained["base_model"] == f"podium/tiny@{base['revision']}"
    assert client.get(f"/v1/models/{name}").json() == trained
    assert len(other_tenant.get("/v1/models").json()["data"]) == 1
    assert other_tenant.get(f"/v1/models/{name}").status_code == 404


def test_a_name_must_be_whole(client: TestClient, run: Run) -> None:
    run.succeed()
    response = client.get(f"/v1/models/ft:other/base::{run.job_id}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_a_model_with_broken_files_is_not_offered(client: TestClient, settings: Settings) -> None:
    (settings.models["podium/tiny"] / "config.json").unlink()
    assert client.get("/v1/models").json()["data"] == []
    response = client.get("/v1/models/podium/tiny")
    assert response.status_code == 422
    assert "config.json" in response.json()["error"]["message"]


def test_an_unknown_model_is_not_found(client: TestClient) -> None:
    for name in ("nothing", "ft:", "ft:podium/tiny::ftjob-missing", "%00"):
        assert client.get(f"/v1/models/{name}").status_code in {404, 422}
