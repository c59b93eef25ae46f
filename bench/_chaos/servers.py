"""Postgres, Valkey and the object store of a chaos run, and the way to each of them."""

import os
from pathlib import Path

import redis
from sqlalchemy import make_url

from bench._chaos.parts import Network, Part
from bench._chaos.seaweedfs import SeaweedFS
from cli.postgres import Postgres, service_account
from cli.valkey import Valkey
from core.db import migrate
from core.db.session import Sessions, make_sessions
from core.settings import Settings
from core.storage.connect import open_store
from core.storage.store import ObjectStore

DATABASE = "podium"
KERNEL_LIVES = {"fsync": "off"}
"""Every fault ends processes, none the kernel: what was handed to it is safe. Commits stay synchronous."""


class Servers:
    def __init__(self, folder: Path, *, s3: bool) -> None:
        logs = folder / "logs"
        self._postgres = Postgres(
            folder / "postgres", log=logs / "postgres.log", account=service_account(), settings=KERNEL_LIVES
        )
        self._valkey = Valkey(folder / "valkey", log=logs / "valkey.log")
        self._seaweedfs = SeaweedFS(folder / "seaweedfs", log=logs / "seaweedfs.log") if s3 else None
        self._store_folder = folder / "store"
        self.postgres = Part(self._postgres.child, self._postgres.start)
        self.valkey = Part(self._valkey.child, self._valkey.start)
        self.store = Part(self._seaweedfs.child, self._seaweedfs.start) if self._seaweedfs else None

    @property
    def parts(self) -> list[Part]:
        return [part for part in (self.postgres, self.valkey, self.store) if part is not None]

    @property
    def database_url(self) -> str:
        """The straight way, by the Unix socket."""
        return self._postgres.url(DATABASE)

    def start(self) -> None:
        """All three ready, the ledger with its schema. Raises StartFailed."""
        for part in self.parts:
            part.start()
        self._postgres.wait_ready()
        migrate.upgrade(self._postgres.ensure_database(DATABASE))
        self._valkey.wait_ready()
        if self._seaweedfs is not None:
            self._seaweedfs.wait_ready()

    def open_ledger(self) -> Sessions:
        return make_sessions(self.database_url)

    def open_store(self) -> ObjectStore:
        environment = self._store_environment(None)
        os.environ.update(environment)  # boto3 takes its keys from nowhere else
        return open_store(
            Settings(
                _env_file=None,
                store_url=environment["PODIUM_STORE_URL"],
                s3_endpoint_url=environment.get("PODIUM_S3_ENDPOINT_URL"),
            )
        )

    def flush_valkey(self) -> None:
        """Raises `redis.RedisError` when it is down."""
        with redis.Redis.from_url(self._valkey.url, socket_timeout=2.0) as client:
            client.flushall()

    def network(self) -> Network:
        """New wires to all three, for one machine."""
        return Network(
            postgres=self._postgres.folder / ".s.PGSQL.5432",
            valkey_port=self._valkey.port,
            store_port=self._seaweedfs.port if self._seaweedfs else None,
        )

    def environment(self, network: Network) -> dict[str, str]:
        """What a process of ours needs to reach them through `network`."""
        database = make_url(self.database_url).set(host="127.0.0.1", port=network.postgres.port, query={})
        broker = self._valkey.url.replace(f":{self._valkey.port}/", f":{network.valkey.port}/")
        return {
            "PODIUM_DATABASE_URL": database.render_as_string(hide_password=False),
            "PODIUM_BROKER_URL": broker,
        } | self._store_environment(network)

    def _store_environment(self, network: Network | None) -> dict[str, str]:
        if self._seaweedfs is None:
            return {"PODIUM_STORE_URL": self._store_folder.as_uri()}
        port = network.store.port if network is not None and network.store is not None else self._seaweedfs.port
        return self._seaweedfs.credentials | {
            "PODIUM_STORE_URL": f"s3://{self._seaweedfs.bucket}",
            "PODIUM_S3_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        }
