"""A real S3 server for the whole test session: SeaweedFS checks signatures, digests and conditions as AWS does.

Everything listens on loopback on free ports, and it tells nobody that it runs.
"""

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cli.processes import Child, Program
from core.settings import Settings

START_TIMEOUT_S = 30.0
_PORTS = (
    "s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
    "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc",
)  # fmt: skip
FLAGS = (
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-master.telemetry=false",
    "-admin.ui=false",
    "-webdav=false",
    "-s3.autoCreateBucket=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
)


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint_url: str
    filer_url: str
    """The tree behind the buckets, without a password."""
    bucket: str = "podium-tests"
    access_key: str = "podium-tests-key"
    secret_key: str = "podium-tests-secret"

    def environment(self, *, prefix: str = "") -> dict[str, str]:
        """What a process of ours needs to keep its objects here; give each test a prefix of its own."""
        return {
            "PODIUM_STORE_URL": f"s3://{self.bucket}/{prefix}",
            "PODIUM_S3_ENDPOINT_URL": self.endpoint_url,
            "PODIUM_S3_PUBLIC_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("seaweedfs")
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    server = S3Server(f"http://127.0.0.1:{ports['s3.port']}", f"http://127.0.0.1:{ports['filer.port']}")
    child = Child(_program(server, folder, ports))
    child.start()
    try:
        child.wait_until(lambda: _has_bucket(server), timeout_s=START_TIMEOUT_S)
        yield server
    finally:
        child.stop()


@pytest.fixture
def s3_settings(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The environment and the settings of a process that keeps its objects there, under a prefix of this test's own."""
    for name, value in s3_server.environment(prefix=uuid4().hex).items():
        monkeypatch.setenv(name, value)
    return Settings(_env_file=None)


def _program(server: S3Server, folder: Path, ports: dict[str, int]) -> Program:
    weed = str(Path(sys.executable).with_name("weed"))
    flags = (*FLAGS, f"-dir={folder}", *(f"-{name}={port}" for name, port in ports.items()))
    return Program(
        name="seaweedfs",
        argv=(weed, f"-logdir={folder}", "mini", *flags),
        log=folder / "seaweedfs.log",
        env={
            "AWS_ACCESS_KEY_ID": server.access_key,
            "AWS_SECRET_ACCESS_KEY": server.secret_key,
            "S3_BUCKET": server.bucket,
        },
    )


def _has_bucket(server: S3Server) -> bool:
    """The bucket comes a moment after the port, so ask for it."""
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        config=Config(retries={"total_max_attempts": 1}),
    )
    try:
        client.head_bucket(Bucket=server.bucket)
    except (ClientError, BotoCoreError):
        return False
    finally:
        client.close()
    return True


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]
