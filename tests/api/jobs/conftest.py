"""A tenant with what a job needs: a model on disk, two data sets, a reward."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.db.session import Sessions
from core.settings import ExportTarget, Settings
from core.storage.connect import open_store
from core.storage.store import ObjectStore
from tests.api.forms import REWARD, upload
from tests.api.jobs.runs import Run
from tests.model_folders import write_model

MODEL = "podium/tiny"


def rows(count: int, *, first: int = 0, **columns: Any) -> bytes:
    """JSONL with a prompt, an answer, and `columns`."""
    lines = ({"prompt": f"{n} + {n}?", "answer": str(2 * n), **columns} for n in range(first, first + count))
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@pytest.fixture
def settings(settings: Settings, tmp_path: Path) -> Settings:
    """With a model that is right in form, and no hub: a test that wants one says so. All exports but trackio."""
    changes = {"models": {MODEL: write_model(tmp_path / "model")}, "allow_hub_models": False}
    offered = tuple(target for target in ExportTarget if target is not ExportTarget.TRACKIO)
    return settings.model_copy(update=changes | {"integrations": offered})


@pytest.fixture
def store(settings: Settings) -> ObjectStore:
    return open_store(settings)


@pytest.fixture
def body(client: TestClient) -> dict[str, Any]:
    """A good job of the first tenant: 20 training rows, 8 held-out tasks."""
    return {
        "model": MODEL,
        "training_file": upload(client, rows(20)).json()["id"],
        "validation_file": upload(client, rows(8, first=100)).json()["id"],
        "method": {"type": "grpo", "grpo": {"rewards": [{"reward": upload_reward(client)}]}},
    }


def upload_reward(client: TestClient, source: str = REWARD, name: str = "exact") -> str:
    response = client.post("/v1/rewards", json={"name": name, "source": source})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


@pytest.fixture
def submit(client: TestClient, body: dict[str, Any]) -> Callable[..., dict[str, Any]]:
    """Create the good job, with some fields changed."""

    def create(**changes: Any) -> dict[str, Any]:
        response = client.post("/v1/fine_tuning/jobs", json={**body, **changes})
        assert response.status_code == 201, response.text
        return dict(response.json())

    return create


@pytest.fixture
def run(sessions: Sessions, store: ObjectStore, submit: Callable[..., dict[str, Any]]) -> Run:
    """A job that a worker has just taken."""
    return Run.claim(sessions, store, submit()["id"])
