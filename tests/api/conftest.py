"""The real app over a real ledger: two tenants, each with a client of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.main import create_app
from core.db import api_keys
from core.db.session import Sessions
from core.ids import TenantId
from core.settings import Settings

OURS = TenantId("tenant-ours")
THEIRS = TenantId("tenant-theirs")


@pytest.fixture
def settings(settings: Settings, valkey_url: str) -> Settings:
    """With a broker, caps that a test can reach, and no wait for a grading worker that is not there."""
    caps = {"max_file_bytes": 256 * 1024, "max_reward_bytes": 16 * 1024, "max_body_bytes": 64 * 1024}
    caps |= {"report_wait_s": 0, "grader_wait_s": 0.1}
    return Settings(_env_file=None, **{**settings.model_dump(), **caps, "broker_url": valkey_url})


@pytest.fixture
def store_folder(settings: Settings) -> Path:
    return Path(settings.store_url.removeprefix("file://"))


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture
def anonymous(app: FastAPI) -> Iterator[TestClient]:
    """A client without a key; an exception that the app does not answer fails the test."""
    with TestClient(app) as client:
        yield client


@pytest.fixture
def client(anonymous: TestClient, sessions: Sessions) -> TestClient:
    return authorised(anonymous, sessions, OURS)


@pytest.fixture
def other_tenant(anonymous: TestClient, sessions: Sessions) -> TestClient:
    return authorised(anonymous, sessions, THEIRS)


def authorised(anonymous: TestClient, sessions: Sessions, tenant_id: TenantId) -> TestClient:
    """A client of the same running app, with a fresh key of the tenant."""
    with sessions.begin() as session:
        _, secret = api_keys.create(session, tenant_id=tenant_id, name="test")
    return TestClient(anonymous.app, headers={"Authorization": f"Bearer {secret}"})
