"""The published contract: complete enough to make a client from, and the same names in every release."""

import re
from typing import Any

import jsonschema
import pytest
from fastapi.testclient import TestClient

ERROR = {"$ref": "#/components/schemas/ErrorReply"}
OPERATION_IDS = {
    "createFile", "listFiles", "getFile", "deleteFile", "downloadFile",
    "createReward", "listRewards", "getReward", "createRewardVersion", "getRewardVersion", "listBuiltinRewards",
    "getRewardReport", "getRewardVersionReport", "runGrader", "validateGrader",
    "createJob", "listJobs", "getJob", "cancelJob", "pauseJob", "resumeJob", "getJobDiagnostics", "getJobLearning",
    "createSignalProbe", "listSignalProbes", "getSignalProbe", "cancelSignalProbe",
    "listJobEvents", "getJobMetrics", "listJobRollouts", "rescoreJob", "getJobRescore",
    "listJobEvaluations", "compareJobEvaluations",
    "listJobCheckpoints", "pinJobCheckpoint", "unpinJobCheckpoint",
    "listJobArtifacts", "downloadJobArtifact", "downloadJobResults", "downloadJobAdapter",
    "downloadJobCheckpointAdapter", "downloadJobBundle",
    "listModels", "getModel",
    "getHealth", "getReadiness", "getVersion",
}  # fmt: skip
"""Method names of generated clients: renaming one breaks them."""


@pytest.fixture
def document(anonymous: TestClient) -> dict[str, Any]:
    response = anonymous.get("/openapi.json")
    assert response.status_code == 200
    return dict(response.json())


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [(path, method, what) for path, methods in document["paths"].items() for method, what in methods.items()]


def test_document_says_what_it_is(document: dict[str, Any]):
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "Podium"
    assert len(document["info"]["description"]) > 100
    assert all(tag["description"] for tag in document["tags"])


def test_operation_ids_are_the_published_ones(document: dict[str, Any]):
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    assert set(ids) == OPERATION_IDS


def test_every_operation_has_one_known_tag_a_summary_and_a_description(document: dict[str, Any]):
    tags = {tag["name"] for tag in document["tags"]}
    for path, method, operation in operations(document):
        assert len(operation["tags"]) == 1, (path, method)
        assert operation["tags"][0] in tags
        assert re.fullmatch(r"[A-Z][\w.' ]+", operation["summary"]), operation["summary"]
        assert operation["description"], (path, method)


def test_every_v1_operation_documents_the_envelope_where_it_can_answer_so(document: dict[str, Any]):
    for path, method, operation in operations(document):
        if not path.startswith("/v1/"):
            continue
        expected = {"401", "422", "500", "503"}
        expected |= {"404"} if "{" in path else set()
        expected |= {"409", "413", "415"} if "requestBody" in operation else set()
        expected |= {"409"} if method == "delete" else set()
        assert expected <= operation["responses"].keys(), (path, method)
        for status, response in operation["responses"].items():
            if status.startswith(("4", "5")):
                content = response["content"]["application/json"]
                assert content["schema"] == ERROR, (path, method, status)
                assert content["example"]["error"]["docs"], (path, method, status)


def test_examples_of_errors_fit_their_schema(document: dict[str, Any]):
    schema = {**ERROR, "components": document["components"]}
    for _, _, operation in operations(document):
        for status, response in operation["responses"].items():
            example = response.get("content", {}).get("application/json", {}).get("example")
            if status.startswith(("4", "5")) and example:
                jsonschema.validate(example, schema)


def test_examples_of_bodies_and_replies_fit_their_schema(document: dict[str, Any]):
    schemas = document["components"]["schemas"]
    with_examples = [name for name, schema in schemas.items() if "examples" in schema]
    assert {"JobCreate", "Diagnostics"} <= set(with_examples)
    for name in with_examples:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        for example in schemas[name]["examples"]:
            jsonschema.validate(example, schema)


def test_nothing_is_left_of_the_frameworks_own_errors(document: dict[str, Any]):
    assert "HTTPValidationError" not in document["components"]["schemas"]


def test_every_v1_operation_wants_the_bearer_key(document: dict[str, Any]):
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path, method, operation in operations(document):
        wanted = [{"bearer": []}] if path.startswith("/v1/") else None
        assert operation.get("security") == wanted, (path, method)


def test_every_create_takes_an_idempotency_key(document: dict[str, Any]):
    creates = [operation for _, _, operation in operations(document) if operation["operationId"].startswith("create")]
    assert len(creates) == 5
    for operation in creates:
        assert "Idempotency-Key" in {parameter["name"] for parameter in operation["parameters"]}


def test_every_parameter_and_reference_is_explained(document: dict[str, Any]):
    for path, method, operation in operations(document):
        for parameter in operation.get("parameters", ()):
            if parameter["in"] != "path" or parameter["name"].endswith("_id"):
                assert parameter.get("description"), (path, method, parameter["name"])


def test_every_json_body_is_checked_at_the_door(client: TestClient, document: dict[str, Any]):
    """An operation on a plain APIRoute would let Python's lax JSON in."""
    bodies = [
        (path, method)
        for path, method, operation in operations(document)
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    assert len(bodies) >= 3
    for path, method in bodies:
        response = client.request(method, path, content=b'{"x": NaN}', headers={"Content-Type": "application/json"})
        assert response.status_code == 422
        assert response.json()["error"]["errors"][0]["field"] == "x", (path, method)


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_no_page_loads_anything_from_elsewhere(anonymous: TestClient, path: str):
    page = anonymous.get(path).text
    assert not re.search(r"<script|(src|href)=[\"'](https?:)?//", page)
