"""Alive, ready, and which version: a part that is away is named, with what to do."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from app.main import create_app
from core.db.session import Sessions
from core.settings import Settings
from core.storage.store import Proof
from tests.polling import wait_until
from tests.servers.s3_gateway import Gateway, running_gateway
from tests.servers.seaweedfs import S3Server

PARTS = ["database", "migrations", "broker", "store"]


def readiness(settings: Settings, **changes: object):
    with TestClient(create_app(settings.model_copy(update=changes))) as client:
        return client.get("/readyz")


def store_report(settings: Settings, s3_settings: Settings, endpoint_url: str | None) -> dict[str, Any]:
    """What `/readyz` says of an S3 store once its self-test has ended: on a busy machine not at the first time."""
    where = {"store_url": s3_settings.store_url, "s3_endpoint_url": endpoint_url}
    with TestClient(create_app(settings.model_copy(update=where))) as client:

        def ended() -> dict[str, Any] | None:
            report: dict[str, Any] = client.get("/readyz").json()["checks"]["store"]
            return None if report["took_s"] is None else report

        return wait_until(ended, what="the store's self-test has ended")


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


def test_the_store_says_what_was_proved_of_it_and_every_part_how_long_it_took(anonymous: TestClient):
    checks = anonymous.get("/readyz").json()["checks"]
    assert checks["store"]["proved"] == ["reads_back", "conditional_create", "checksum"]
    assert all(part["took_s"] >= 0 for part in checks.values())
    assert all(part["proved"] == [] for name, part in checks.items() if name != "store")


def test_of_s3_the_secret_is_proved_too(settings: Settings, s3_settings: Settings):
    report = store_report(settings, s3_settings, s3_settings.s3_endpoint_url)
    assert (report["ok"], report["proved"]) == (True, list(Proof))


def test_an_s3_server_that_ignores_conditional_writes_is_not_ready(
    settings: Settings, s3_settings: Settings, s3_server: S3Server
):
    with running_gateway(Gateway(s3_server, drops=frozenset({"if-none-match"}))) as gateway:
        report = store_report(settings, s3_settings, gateway.url)
    assert (report["ok"], report["code"], report["proved"]) == (False, "store_misconfigured", [])
    assert "If-None-Match" in report["message"]


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
