"""A create that is sent twice happens once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.db import idempotency
from core.db.session import Sessions
from tests.api.conftest import OURS
from tests.api.forms import REWARD, upload

KEY = {"Idempotency-Key": "create-1"}


def post_reward(client: TestClient, **headers: str) -> Any:
    return client.post("/v1/rewards", json={"name": "a", "source": REWARD}, headers=headers)


def post_reward_file(client: TestClient, **headers: str) -> Any:
    return client.post("/v1/rewards", files={"file": ("a.py", REWARD.encode())}, headers=headers)


def post_file(client: TestClient, **headers: str) -> Any:
    return upload(client, headers=headers)


CREATES = pytest.mark.parametrize(
    ("post", "collection"),
    [(post_file, "/v1/files"), (post_reward, "/v1/rewards"), (post_reward_file, "/v1/rewards")],
)
Post = Callable[..., Any]


@CREATES
def test_same_key_and_body_replays_the_first_answer(client: TestClient, post: Post, collection: str):
    first, second = post(client, **KEY), post(client, **KEY)
    assert (first.status_code, second.status_code) == (201, 201)
    assert second.json() == first.json()
    assert "idempotent-replayed" not in first.headers
    assert second.headers["idempotent-replayed"] == "true"
    assert len(client.get(collection).json()["data"]) == 1


@CREATES
def test_without_a_key_every_create_is_new(client: TestClient, post: Post, collection: str):
    assert post(client).json()["id"] != post(client).json()["id"]
    assert len(client.get(collection).json()["data"]) == 2


def test_other_body_under_the_same_key_is_422(client: TestClient):
    assert post_file(client, **KEY).status_code == 201
    for response in (
        upload(client, b'{"prompt": "another"}\n', headers=KEY),
        upload(client, filename="other.jsonl", headers=KEY),
        post_reward(client, **KEY),
    ):
        assert response.status_code == 422
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")
        assert error["fix"]
    assert len(client.get("/v1/files").json()["data"]) == 1


def test_key_belongs_to_its_tenant(client: TestClient, other_tenant: TestClient):
    ours, theirs = post_reward(client, **KEY).json(), post_reward(other_tenant, **KEY).json()
    assert ours["id"] != theirs["id"]


def test_failed_create_frees_its_key(client: TestClient):
    assert upload(client, b"nonsense", headers=KEY).status_code == 422
    assert post_file(client, **KEY).status_code == 201


@CREATES
def test_key_in_flight_is_409_that_may_be_tried_again(
    client: TestClient, sessions: Sessions, post: Post, collection: str
):
    with sessions.begin() as session:
        assert idempotency.lock(session, OURS, KEY["Idempotency-Key"])
        response = post(client, **KEY)
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "request_in_flight"
    assert "x-should-retry" not in response.headers
    assert response.headers["retry-after"]
    assert client.get(collection).json()["data"] == []
    assert post(client, **KEY).status_code == 201


def test_many_at_once_create_one(client: TestClient, store_folder: Path):
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: post_file(client, **KEY), range(8)))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1
    assert len(client.get("/v1/files").json()["data"]) == 1
    assert len(list((store_folder / "files").iterdir())) == 1


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "\u00e4", "a\tb"])
def test_key_that_is_no_name_is_422(client: TestClient, key: str):
    response = client.post(
        "/v1/rewards", json={"name": "a", "source": REWARD}, headers={"Idempotency-Key": key.encode("latin-1")}
    )
    assert response.status_code == 422
    assert response.json()["error"]["param"] == "Idempotency-Key"


def test_new_version_replays_too(client: TestClient):
    reward = post_reward(client).json()
    path, body = f"/v1/rewards/{reward['id']}/versions", {"source": REWARD + "# 2\n"}
    first, second = client.post(path, json=body, headers=KEY), client.post(path, json=body, headers=KEY)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
