"""The local stack: Postgres, Valkey, the API, dispatcher, workers and exporter, on one machine and one folder."""

import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from cli.configuration import read_settings
from cli.data_folder import Connection, DataFolder, write_secret
from cli.errors import PortUnavailable
from cli.ledger import transaction
from cli.postgres import Postgres, service_account
from cli.processes import Child, Keeper, Program, python_module
from cli.valkey import Valkey
from core.db import api_keys, migrate
from core.ids import TenantId
from core.queue import GRADING_QUEUE
from core.settings import CHECKOUT

HOST = "127.0.0.1"
DEFAULT_PORT = 8000
PORTS_TRIED = 100
API_TIMEOUT_S = 60.0
READY_ANSWER_S = 2.0
TENANT = TenantId("local")
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
"""Celery workers that know nothing of each other: the ledger knows."""
DATABASE = "podium"

Say = Callable[[str], None]


class Stack:
    """`start`, then `tend` often, then `stop`; all from the main thread (see cli.processes.Child)."""

    def __init__(self, folder: DataFolder, *, listener: socket.socket, say: Say) -> None:
        self._folder = folder
        self._url = f"http://{HOST}:{listener.getsockname()[1]}"
        self._say = say
        self._postgres = Postgres(folder.postgres, log=folder.log("postgres"), account=service_account())
        self._valkey = Valkey(folder.valkey, log=folder.log("valkey"))
        env = _environment(folder, database_url=self._postgres.url(DATABASE), broker_url=self._valkey.url)
        self._api = Child(_api(folder.log("api"), env, listener))
        self._dispatcher = Child(_dispatcher(folder.log("dispatcher"), env))
        self._worker = Child(_worker(folder.log("worker"), env))
        self._grader = Child(_grader(folder.log("grader"), env))
        self._exporter = Child(_exporter(folder.log("exporter"), env))
        self._keepers: list[Keeper] = []

    def start(self) -> Connection:
        """Everything up and `/readyz` green, then `connection.json`. Raises StartFailed."""
        self._folder.connection.unlink(missing_ok=True)
        self._valkey.start()
        self._postgres.start()
        self._api.start()  # connects to nothing before it is asked, and takes the longest to load
        api_key = self._prepare_ledger()
        self._valkey.wait_ready()
        self._dispatcher.start()
        self._worker.start()
        self._wait_ready()
        self._grader.start()  # its answers are waited for, so it need not be; and it would slow the others down
        self._exporter.start()  # nobody waits for it
        servers = (self._postgres.child, self._valkey.child)
        ours = (self._api, self._dispatcher, self._worker, self._grader, self._exporter)
        self._keepers = [Keeper(child, say=self._say) for child in (*servers, *ours)]
        connection = Connection(url=self._url, api_key=api_key, pid=os.getpid())
        self._folder.write_connection(connection)
        return connection

    def tend(self) -> None:
        """Start again what ended. Raises StartFailed for what never worked."""
        for keeper in self._keepers:
            keeper.tend()

    def stop(self) -> None:
        """The worker first, with time to save a checkpoint; what it writes to last."""
        self._folder.connection.unlink(missing_ok=True)
        for quick in (self._grader, self._exporter):
            quick.ask_to_stop()
        for part in self._parts:
            part.stop()

    def kill(self) -> None:
        """At once: Postgres recovers on the next start, jobs continue from their last checkpoint."""
        for part in self._parts:
            part.kill()

    @property
    def _parts(self) -> tuple[Child | Valkey | Postgres, ...]:
        """In the order in which they end."""
        ours = (self._worker, self._grader, self._exporter, self._dispatcher, self._api)
        return (*ours, self._valkey, self._postgres)

    def _prepare_ledger(self) -> str:
        """The API key of this folder, in a database with the newest schema."""
        self._postgres.wait_ready()
        database_url = self._postgres.ensure_database(DATABASE)
        migrate.upgrade(database_url)
        return _ensure_key(self._folder.api_key, database_url)

    def _wait_ready(self) -> None:
        with httpx.Client(base_url=self._url, timeout=READY_ANSWER_S) as client:

            def ready() -> bool:
                self._dispatcher.fail_if_ended()
                self._worker.fail_if_ended()
                return _is_ready(client)

            self._api.wait_until(ready, timeout_s=API_TIMEOUT_S)


@contextmanager
def running_stack(folder: DataFolder, *, port: int | None, say: Say) -> Iterator[tuple[Stack, Connection]]:
    """A ready stack for the length of the block; a second Ctrl+C while it stops ends everything at once."""
    folder.make()
    with folder.held(), listen(port, say=say) as listener:
        stack = Stack(folder, listener=listener, say=say)
        try:
            started_at = time.monotonic()
            connection = stack.start()
            say(f"Podium is ready ({time.monotonic() - started_at:.1f} s).")
            yield stack, connection
        finally:
            _stop(stack, say)


def listen(port: int | None, *, say: Say) -> socket.socket:
    """A listening socket on `port`; without a wish, on the first free one from 8000. Raises PortUnavailable."""
    if port is not None:
        return _listen_on([port])
    listener = _listen_on(range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED))
    chosen = listener.getsockname()[1]
    if chosen != DEFAULT_PORT:
        say(f"Port {DEFAULT_PORT} is taken; using {chosen}.")
    return listener


def _listen_on(ports: Sequence[int]) -> socket.socket:
    for port in ports:
        try:
            return socket.create_server((HOST, port), backlog=128)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise PortUnavailable(f"Port {port} cannot be used: {error}.", param="port") from error
    which = f"Port {ports[0]} is" if len(ports) == 1 else f"Ports {ports[0]} to {ports[-1]} are all"
    raise PortUnavailable(f"{which} taken on {HOST}.", param="port")


def _stop(stack: Stack, say: Say) -> None:
    try:
        say("Stopping; Ctrl+C again stops at once.")
        stack.stop()
    except KeyboardInterrupt:
        stack.kill()
    say("Stopped.")


def _environment(folder: DataFolder, *, database_url: str, broker_url: str) -> dict[str, str]:
    return {
        "PODIUM_DATABASE_URL": database_url,
        "PODIUM_BROKER_URL": broker_url,
        "PODIUM_STORE_URL": folder.store.as_uri(),
        "PODIUM_RUNS_DIR": str(folder.runs),
        "PYTHONUNBUFFERED": "1",
    }


def _api(log: Path, env: dict[str, str], listener: socket.socket) -> Program:
    """It serves our listening socket: the port is ours from the first moment to the last.

    While a fallen API is started again, clients wait instead of being refused.
    """
    handle = listener.fileno()
    options = ("--fd", str(handle), "--no-access-log", "--timeout-graceful-shutdown", "5")
    return Program(
        name="api",
        argv=python_module("uvicorn", "app.main:create_app", "--factory", *options),
        log=log,
        env=env,
        folder=CHECKOUT,
        pass_fds=(handle,),
    )


def _dispatcher(log: Path, env: dict[str, str]) -> Program:
    return Program(name="dispatcher", argv=python_module("worker.dispatcher"), log=log, env=env, folder=CHECKOUT)


def _worker(log: Path, env: dict[str, str]) -> Program:
    """One training slot. Its grace covers the trainer's own, in which it saves a checkpoint."""
    pool = ("--pool", "prefork", "--concurrency", "1", "--prefetch-multiplier", "1")
    return Program(
        name="worker",
        argv=python_module("celery", "-A", "worker.main", "worker", *pool, *QUIET),
        log=log,
        env=env,
        folder=CHECKOUT,
        stop_grace_s=read_settings().stop_grace_s + 15.0,
        death_signal=signal.SIGTERM,
    )


def _grader(log: Path, env: dict[str, str]) -> Program:
    """Tries graders and probes rewards. What is cut off at its end is done again by the next one."""
    pool = ("--pool", "prefork", "--prefetch-multiplier", "1", "-Q", GRADING_QUEUE)
    return Program(
        name="grader",
        argv=python_module("celery", "-A", "worker.grading_tasks.main", "worker", *pool, *QUIET),
        log=log,
        env=env,
        folder=CHECKOUT,
        stop_grace_s=5.0,
        death_signal=signal.SIGTERM,
    )


def _exporter(log: Path, env: dict[str, str]) -> Program:
    """What is cut off at its end goes on at the next start. Its grace covers that of its own children."""
    argv = python_module("worker.exports.main")
    return Program(name="exporter", argv=argv, log=log, env=env, folder=CHECKOUT, stop_grace_s=12.0)


def _ensure_key(path: Path, database_url: str) -> str:
    """The key of the earlier starts, or a first one; a revoked one is replaced."""
    with transaction(database_url) as session:
        secret = path.read_text().strip() if path.exists() else ""
        if api_keys.find(session, secret) is not None:
            return secret
        _, secret = api_keys.create(session, tenant_id=TENANT, name="local stack")
    write_secret(path, secret + "\n")
    return secret


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False
