"""A real S3 server for the whole test session; `bench._chaos.seaweedfs` says which and how."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from bench._chaos.seaweedfs import SeaweedFS
from core.settings import Settings


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint_url: str
    filer_url: str
    """The tree behind the buckets, without a password."""
    bucket: str = SeaweedFS.bucket
    access_key: str = SeaweedFS.credentials["AWS_ACCESS_KEY_ID"]
    secret_key: str = SeaweedFS.credentials["AWS_SECRET_ACCESS_KEY"]

    def environment(self, *, prefix: str = "") -> dict[str, str]:
        """What a process of ours needs to keep its objects here; give each test a prefix of its own."""
        return SeaweedFS.credentials | {
            "PODIUM_STORE_URL": f"s3://{self.bucket}/{prefix}",
            "PODIUM_S3_ENDPOINT_URL": self.endpoint_url,
            "PODIUM_S3_PUBLIC_ENDPOINT_URL": self.endpoint_url,
        }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("seaweedfs")
    server = SeaweedFS(folder, log=folder / "seaweedfs.log")
    server.start()
    try:
        server.wait_ready()
        yield S3Server(f"http://127.0.0.1:{server.port}", f"http://127.0.0.1:{server.filer_port}")
    finally:
        server.stop()


@pytest.fixture
def s3_settings(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The environment and the settings of a process that keeps its objects there, under a prefix of this test's own."""
    for name, value in s3_server.environment(prefix=uuid4().hex).items():
        monkeypatch.setenv(name, value)
    return Settings(_env_file=None)
