"""Who may ask: a live key, and nothing else."""

import pytest
from fastapi.testclient import TestClient

from core.db import api_keys
from core.db.session import Sessions
from tests.api.conftest import OURS


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic cGs6eA==", "pk_x", "Bearer pk_wrong", "Bearer pk_\u00e4", "Bearer a b"],
)
def test_request_without_a_live_key_is_401(anonymous: TestClient, header: str | None):
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    response = anonymous.get("/v1/files", headers=headers)
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = response.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "authentication_error",
        "invalid_api_key",
        "Authorization",
    )
    assert "podium keys create" in error["fix"]


def test_scheme_is_case_insensitive(client: TestClient):
    header = client.headers["Authorization"].replace("Bearer", "bearer")
    assert client.get("/v1/files", headers={"Authorization": header}).status_code == 200


def test_revoked_key_is_401_at_once(anonymous: TestClient, sessions: Sessions):
    with sessions.begin() as session:
        key, secret = api_keys.create(session, tenant_id=OURS, name="short-lived")
    headers = {"Authorization": f"Bearer {secret}"}
    assert anonymous.get("/v1/files", headers=headers).status_code == 200
    with sessions.begin() as session:
        assert api_keys.revoke(session, key.id)
    assert anonymous.get("/v1/files", headers=headers).status_code == 401


def test_every_v1_operation_asks_for_a_key(anonymous: TestClient):
    paths = anonymous.get("/openapi.json").json()["paths"]
    operations = [(method, path) for path, methods in paths.items() for method in methods if path.startswith("/v1/")]
    assert len(operations) >= 10
    for method, path in operations:
        url = path.replace("{version}", "1").replace("{step}", "1")
        response = anonymous.request(method, url, json={} if method == "post" else None)
        assert response.status_code == 401, (method, path)


def test_wrong_key_is_told_before_the_file_is_read(anonymous: TestClient):
    """The body is read by the upload's own dependency, after the key was checked."""
    sent = 0

    def body():
        nonlocal sent
        for _ in range(4):
            sent += 1
            yield b"x" * 1000

    headers = {"Authorization": "Bearer pk_wrong", "Content-Type": "multipart/form-data; boundary=x"}
    assert anonymous.post("/v1/files", content=body(), headers=headers).status_code == 401
    assert sent == 0
