"""The two stores, for the tests of their one contract: a folder, and S3 on a real SeaweedFS."""

from pathlib import Path

import pytest

from core.settings import Settings
from core.storage.connect import open_store
from core.storage.folder import FolderStore
from core.storage.s3 import S3Store
from core.storage.store import ObjectStore


@pytest.fixture
def folder_store(tmp_path: Path) -> FolderStore:
    store = open_store(Settings(_env_file=None, store_url=f"file://{tmp_path}/the%20store"))
    assert isinstance(store, FolderStore)
    return store


@pytest.fixture
def s3_store(s3_settings: Settings) -> S3Store:
    store = open_store(s3_settings)
    assert isinstance(store, S3Store)
    return store


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    return request.getfixturevalue(f"{request.param}_store")
