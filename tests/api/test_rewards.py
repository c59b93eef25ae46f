"""Reward functions over HTTP: read, never run, and kept in versions that never change."""

import hashlib

import pytest
from fastapi.testclient import TestClient

from core.settings import Settings
from tests.api.forms import REWARD, problems

OTHER = "def reward(completion, answer, hint=None):\n    return float(answer == completion)\n"


def create(client: TestClient, source: str = REWARD, name: str = "exact_match"):
    return client.post("/v1/rewards", json={"name": name, "source": source})


def test_reward_is_created_from_json(client: TestClient):
    response = create(client)
    assert response.status_code == 201
    reward = response.json()
    assert reward["id"].startswith("rew-")
    assert reward["version_id"].startswith("rewver-")
    varying = ("id", "version_id", "created_at")
    assert {key: reward[key] for key in reward if key not in varying} == {
        "object": "reward",
        "name": "exact_match",
        "version": 1,
        "sha256": hashlib.sha256(REWARD.encode()).hexdigest(),
        "entry_point": "reward",
        "form": "per_sample",
        "columns": {"required": ["answer"], "optional": [], "takes_any": False},
        "report_status": "pending",
        "report": None,
        "report_error": None,
    }


def test_reward_is_created_from_a_file_and_named_after_it(client: TestClient):
    response = client.post("/v1/rewards", files={"file": ("my reward (2).py", REWARD.encode())})
    assert response.status_code == 201
    assert response.json()["name"] == "my_reward_2"
    assert response.json()["sha256"] == hashlib.sha256(REWARD.encode()).hexdigest()


def test_file_and_json_mean_the_same(client: TestClient):
    data = {"name": "named", "entry_point": "reward"}
    by_file = client.post("/v1/rewards", files={"file": ("r.py", REWARD.encode())}, data=data).json()
    by_json = client.post("/v1/rewards", json={**data, "source": REWARD}).json()
    same = ("object", "name", "version", "sha256", "entry_point", "form", "columns")
    assert {key: by_file[key] for key in same} == {key: by_json[key] for key in same}


def test_form_that_is_named_is_kept_and_is_a_version_of_its_own(client: TestClient):
    source = "def reward(completion, answer):\n    return completion[-1]['content'] == answer\n"
    reward = create(client, source).json()
    assert reward["form"] == "per_sample"
    versions = f"/v1/rewards/{reward['id']}/versions"
    response = client.post(versions, json={"source": source, "form": "verifiers"})
    assert (response.status_code, response.json()["form"]) == (201, "verifiers")
    by_file = client.post(versions, files={"file": ("r.py", source.encode())}, data={"form": "verifiers"})
    assert (by_file.status_code, by_file.json()["version"]) == (200, 2)


@pytest.mark.parametrize(
    ("form", "field", "code"), [("openai", "entry_point", "no_entry_point"), ("nodus", "form", "invalid_value")]
)
def test_form_that_does_not_fit_is_refused(client: TestClient, form, field, code):
    response = client.post("/v1/rewards", json={"name": "a", "source": REWARD, "form": form})
    assert response.status_code == 422
    assert problems(response) == {field: code}


def test_creating_never_runs_the_source(client: TestClient, tmp_path):
    mark = tmp_path / "ran"
    source = f"open({str(mark)!r}, 'w').close()\n{REWARD}"
    assert create(client, source).status_code == 201
    assert not mark.exists()


@pytest.mark.parametrize(
    ("source", "field", "code"),
    [
        ("def reward(completion:\n    return 1\n", "source", "syntax_error"),
        ("x = 1\n", "entry_point", "no_entry_point"),
        ("import torch\n" + REWARD, "source", "unknown_import"),
        ("", "entry_point", "no_entry_point"),
    ],
)
def test_source_that_cannot_be_a_reward_is_refused(client: TestClient, source: str, field: str, code: str):
    response = create(client, source)
    assert response.status_code == 422
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("invalid_reward", field)
    assert error["fix"]
    assert problems(response) == {field: code}
    assert client.get("/v1/rewards").json()["data"] == []


def test_entry_point_that_is_not_there_is_named(client: TestClient):
    response = client.post("/v1/rewards", json={"name": "a", "source": REWARD, "entry_point": "grade"})
    assert problems(response) == {"entry_point": "no_entry_point"}


def test_file_that_is_not_utf8_is_refused_with_its_line(client: TestClient):
    response = client.post("/v1/rewards", files={"file": ("r.py", b"# a\n# \xff\n" + REWARD.encode())})
    assert response.status_code == 422
    assert "line 2 is not UTF-8" in response.json()["error"]["message"]


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b", "ä"])
def test_name_that_metrics_could_not_carry_is_refused(client: TestClient, name: str):
    response = create(client, name=name)
    assert response.status_code == 422
    assert problems(response) == {"name": "invalid_value"}


def test_source_over_the_cap_is_413_in_both_forms(client: TestClient, settings: Settings):
    source = REWARD + "#" * settings.max_reward_bytes
    for response in (create(client, source), client.post("/v1/rewards", files={"file": ("r.py", source.encode())})):
        assert response.status_code == 413
        assert response.json()["error"]["message"].endswith("is larger than 16 KiB.")


def test_new_source_is_a_new_version_and_the_old_one_stays(client: TestClient):
    reward = create(client).json()
    path = f"/v1/rewards/{reward['id']}"
    response = client.post(f"{path}/versions", json={"source": OTHER})
    assert response.status_code == 201
    second = response.json()
    assert (second["version"], second["object"], second["reward_id"]) == (2, "reward.version", reward["id"])
    assert second["columns"] == {"required": ["answer"], "optional": ["hint"], "takes_any": False}
    detail = client.get(path).json()
    assert (detail["version"], detail["version_id"]) == (2, second["id"])
    assert [version["version"] for version in detail["versions"]] == [2, 1]
    assert detail["versions"][1]["id"] == reward["version_id"]
    assert client.get(f"{path}/versions/1").json()["source"] == REWARD
    assert client.get(f"{path}/versions/2").json()["source"] == OTHER


def test_same_source_is_the_same_version(client: TestClient):
    reward = create(client).json()
    path = f"/v1/rewards/{reward['id']}/versions"
    for response in (
        client.post(path, json={"source": REWARD}),
        client.post(path, files={"file": ("r.py", REWARD.encode())}),
    ):
        assert response.status_code == 200
        assert response.json()["id"] == reward["version_id"]
    assert client.post(path, json={"source": OTHER}).json()["version"] == 2
    assert client.post(path, json={"source": REWARD}).json()["version"] == 3


def test_same_source_with_another_entry_point_is_another_version(client: TestClient):
    source = REWARD + REWARD.replace("reward", "strict")
    reward = client.post("/v1/rewards", json={"name": "a", "source": source}).json()
    response = client.post(f"/v1/rewards/{reward['id']}/versions", json={"source": source, "entry_point": "strict"})
    assert response.status_code == 201
    assert response.json()["entry_point"] == "strict"


def test_a_version_takes_no_name(client: TestClient):
    reward = create(client).json()
    path = f"/v1/rewards/{reward['id']}/versions"
    assert problems(client.post(path, json={"source": OTHER, "name": "x"})) == {"name": "unknown_field"}
    response = client.post(path, files={"file": ("r.py", OTHER.encode())}, data={"name": "x"})
    assert problems(response) == {"name": "unknown_field"}


def test_missing_version_is_404(client: TestClient):
    reward = create(client).json()
    response = client.get(f"/v1/rewards/{reward['id']}/versions/2")
    assert response.status_code == 404
    assert response.json()["error"]["param"] == "version"


def test_list_shows_each_reward_with_its_newest_version(client: TestClient):
    ids = [create(client, name=f"r{n}").json()["id"] for n in range(3)]
    client.post(f"/v1/rewards/{ids[0]}/versions", json={"source": OTHER})
    page = client.get("/v1/rewards?limit=2").json()
    assert [reward["id"] for reward in page["data"]] == [ids[2], ids[1]]
    assert page["has_more"] is True
    rest = client.get(f"/v1/rewards?after={page['last_id']}").json()
    assert [(reward["id"], reward["version"]) for reward in rest["data"]] == [(ids[0], 2)]
    assert rest["has_more"] is False
