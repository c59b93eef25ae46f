"""Victims of attacks: graders' clients run by root and by a user without rights, with things of value around them."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.settings import CHECKOUT
from worker.grading import unprivileged

NOBODY = 65534
SECRET = "hunter2-of-the-operator"
MEMORY_BYTES = 384 * 1024**2


class Victims:
    """The program `tests.worker.grading.victim`, asked from here."""

    def __init__(self, user: str, facts: dict[str, Any], *, sandbox: str = "on") -> None:
        environment = {
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "PODIUM_REWARD_MEMORY_BYTES": str(MEMORY_BYTES),
            "PATH": os.environ["PATH"],
        }
        words = [f"{name}={value}" for name, value in environment.items()]
        command = ["/usr/bin/env", "-i", *words, sys.executable, "-m", "tests.worker.grading.victim", json.dumps(facts)]
        self._process = subprocess.Popen(
            as_user(user, command), cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with self._process:
            self._process.stdin.close()


def as_user(user: str, command: list[str]) -> list[str]:
    """Run by root, a rootless user is the one that `worker.grading.unprivileged` makes, with our files in sight."""
    if user == "root" or os.geteuid() != 0:
        return command
    needed = "\n".join({sys.base_prefix, sys.prefix, str(CHECKOUT)})
    return [sys.executable, "-I", "-S", unprivileged.__file__, str(NOBODY), needed, *command]


def users() -> list[str]:
    return ["root", "rootless"] if os.geteuid() == 0 else ["rootless"]


@pytest.fixture(scope="session")
def facts() -> Iterator[dict[str, Any]]:
    """What attacks aim at, open to everybody on the host: only the sandbox is in the way."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podium-target-")))
        folder.chmod(0o755)
        (folder / "heldout.jsonl").write_text("{}")
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        unix.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        abstract.bind(f"\0podium-target-{os.getpid()}")
        listeners = Listeners([server, unix, abstract])
        yield {
            "run_directory": str(folder),
            "held_out": str(folder / "heldout.jsonl"),
            "port": server.getsockname()[1],
            "unix_socket": str(folder / "socket"),
            "abstract_socket": f"podium-target-{os.getpid()}",
            "checkout": str(CHECKOUT),
            "tenant_file": "/tmp/of-a-tenant",
        }
        listeners.assert_nobody_came()


class Listeners:
    """Sockets that nobody may reach."""

    def __init__(self, sockets: list[socket.socket]) -> None:
        self._sockets = sockets
        for each in sockets:
            each.setblocking(False)

    def assert_nobody_came(self) -> None:
        for each in self._sockets:
            with pytest.raises(BlockingIOError):
                each.accept() if each.type == socket.SOCK_STREAM else each.recv(1)


@pytest.fixture(scope="module", params=users())
def victims(request: pytest.FixtureRequest, facts: dict[str, Any]) -> Iterator[Victims]:
    victims = Victims(request.param, facts)
    yield victims
    victims.close()


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 64, hard))
    fillers: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            fillers.append(os.open(os.devnull, os.O_RDONLY))
    for filler in fillers[:count]:
        os.close(filler)
    try:
        yield
    finally:
        for filler in fillers[count:]:
            os.close(filler)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
