"""Alive, ready, and which version: a part that is away is named, with what to do."""

from importlib.metadata import version
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from app.main import create_app
from core.db.session import Sessions
from core.settings import Settings

PARTS = ["database", "migrations", "broker", "store"]


def readiness(settings: Settings, **changes: object):
    with TestClient(create_app(settings.model_copy(update=changes))) as client:
        return client.get("/readyz")


def test_alive_needs_nothing(settings: Settings):
    away = settings.model_copy(update={"database_url": "postgresql+psycopg://127.0.0.1:9/x"})
    with TestClient(create_app(away)) as client:
        response = client.get("/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_version_is_the_installed_one(anonymous: TestClient):
    assert anonymous.get("/version").json()["version"] == version("podium")


def test_ready_when_every_part_answers(anonymous: TestClient):
    response = anonymous.get("/readyz")
    assert response.status_code == 200
    assert response.json()["status"] == "ready"
    assert list(response.json()["checks"]) == PARTS
    assert all(part["ok"] for part in response.json()["checks"].values())


@pytest.mark.parametrize(
    ("changes", "troubles"),
    [
        ({"database_url": "postgresql+psycopg://nobody@127.0.0.1:9/x"}, {"database", "migrations"}),
        ({"store_url": "file:///proc/nowhere"}, {"store"}),
    ],
)
def test_part_that_is_away_is_named_with_a_fix(settings: Settings, changes: dict[str, str], troubles: set[str]):
    response = readiness(settings, **changes)
    assert response.status_code == 503
    assert response.json()["status"] == "not_ready"
    checks = response.json()["checks"]
    assert {name for name, part in checks.items() if not part["ok"]} == troubles
    assert all(checks[name]["fix"] and checks[name]["code"] for name in troubles)
    assert "127.0.0.1" not in response.text


def test_broker_that_is_away_is_named(settings: Settings):
    away = Settings(_env_file=None, **{**settings.model_dump(), "broker_url": "redis://127.0.0.1:9/0"})
    checks = readiness(away).json()["checks"]
    assert {name for name, part in checks.items() if not part["ok"]} == {"broker"}


def test_schema_of_another_version_is_not_ready(settings: Settings, sessions: Sessions):
    with sessions.begin() as session:
        newest = session.scalar(text("SELECT version_num FROM alembic_version"))
        session.execute(text("UPDATE alembic_version SET version_num = 'older'"))
    try:
        response = readiness(settings)
    finally:
        with sessions.begin() as session:
            session.execute(text("UPDATE alembic_version SET version_num = :newest"), {"newest": newest})
    assert response.status_code == 503
    assert response.json()["checks"]["migrations"]["code"] == "schema_outdated"


def test_store_is_not_asked_at_every_probe(anonymous: TestClient, store_folder: Path):
    assert anonymous.get("/readyz").status_code == 200
    store_folder.rename(store_folder.with_name("away"))
    store_folder.touch()
    assert anonymous.get("/readyz").status_code == 200
