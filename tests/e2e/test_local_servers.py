"""The embedded servers and the keeping of children, with real processes: what every kind of end leaves behind."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
import redis

from cli.errors import StartFailed
from cli.postgres import Postgres, running_postgres, service_account
from cli.processes import Child, Keeper, Program, process_exists
from cli.valkey import Valkey, running_valkey

WAIT_S = 60.0
SERVE_FOREVER = """
import sys, time
from pathlib import Path
from tempfile import TemporaryDirectory
from cli.postgres import running_postgres
from cli.valkey import running_valkey
folder = Path(sys.argv[1])
with running_postgres(folder / "postgres") as postgres, running_valkey(folder / "valkey") as valkey:
    print(postgres.child.pid, valkey.child.pid, flush=True)
    time.sleep(3600)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that Postgres's own account can be let into; pytest closes its own to others at every start."""
    with TemporaryDirectory(prefix="podium-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A folder in which one cluster was made; the tests that need no fresh one start it in turn."""
    with TemporaryDirectory(prefix="podium-test-") as folder:
        yield Path(folder) / "data"


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen]:
    """A live process that is no server, under the account that the server runs as."""
    account = service_account()
    with subprocess.Popen(["/bin/sleep", "600"], user=account.uid if account else None) as process:
        yield process
        process.kill()


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def query(server: Postgres, statement: str):
    with psycopg.connect(server.url().replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def shell(place: Path, script: str, **options) -> Child:
    return Child(Program(name="script", argv=("/bin/sh", "-c", script), log=place / "script.log", **options))


def test_postgres_keeps_its_data_over_a_stop_and_a_start(cluster):
    with running_postgres(cluster) as server:
        query(server, "CREATE TABLE kept AS SELECT 7 AS n")
    with running_postgres(cluster) as server:
        assert query(server, "SELECT n FROM kept") == [(7,)]


def test_postgres_starts_although_a_stranger_has_the_process_number_of_its_killed_server(cluster, stranger):
    with running_postgres(cluster):
        pass
    lines = [str(stranger.pid), str(cluster), "0", "5432", str(cluster), "", "0 0", "ready"]
    (cluster / "postmaster.pid").write_text("\n".join(lines) + "\n")
    with running_postgres(cluster) as server:
        assert query(server, "SELECT 1") == [(1,)]
    assert stranger.poll() is None


def test_postgres_starts_over_a_half_made_cluster(place):
    half_made = place / "data.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")
    with running_postgres(place / "data") as server:
        assert query(server, "SELECT 1") == [(1,)]


def test_postgres_serves_a_folder_whose_path_is_no_socket_path_and_leaves_no_socket_behind(place):
    folder = place / ("long and with spaces " * 8)
    with running_postgres(folder) as server:
        assert query(server, "SELECT 1") == [(1,)]
        sockets = Path(server.url().split("host=")[1])
        assert sockets.exists()
    assert not sockets.exists()


def test_postgres_listens_on_no_network_port(cluster):
    with running_postgres(cluster) as server:
        assert query(server, "SHOW listen_addresses") == [("",)]


def test_a_server_that_cannot_start_shows_its_own_words(cluster):
    with running_postgres(cluster):
        pass
    version = (cluster / "PG_VERSION").read_text()
    (cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(StartFailed, match="incompatible"), running_postgres(cluster):
        pass
    (cluster / "PG_VERSION").write_text(version)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another account")
def test_as_root_postgres_runs_as_its_own_account(cluster):
    account = service_account()
    assert account is not None
    with running_postgres(cluster) as server:
        assert Path(f"/proc/{server.child.pid}").stat().st_uid == account.uid != 0


def test_valkey_answers_nobody_without_the_password(place):
    with running_valkey(place / "data") as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert server.url.split(":")[2].split("@")[0] not in Path(f"/proc/{server.child.pid}/cmdline").read_text()


def test_valkeys_port_is_its_own_before_it_starts_and_while_it_is_started_again(place):
    server = Valkey(place / "data", log=place / "valkey.log")
    try:
        for _ in range(2):
            with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
                stranger.bind(("127.0.0.1", server.port))
            server.start()
            server.wait_ready()
            server.child.kill()
    finally:
        server.stop()


def test_no_server_outlives_a_killed_parent_and_the_next_start_works(place):
    command = [sys.executable, "-c", SERVE_FOREVER, str(place)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(process_exists, pids)))
    with running_postgres(place / "postgres") as server:
        assert query(server, "SELECT 1") == [(1,)]


def test_what_a_child_left_in_its_group_ends_with_it(place):
    child = shell(place, "sleep 600 & echo $! && exit 0")
    child.start()
    child.wait(WAIT_S)
    grandchild = int(child.log_tail())
    child.stop()
    wait_until(lambda: not process_exists(grandchild))


def test_a_child_that_ignores_the_request_is_killed_after_its_grace(place):
    child = shell(place, "trap '' TERM; echo up; while :; do sleep 0.1; done", stop_grace_s=0.2)
    child.start()
    child.wait_until(lambda: child.log_tail() == "up", timeout_s=WAIT_S)
    child.stop()
    assert child.exit_code() == -signal.SIGKILL


def test_a_killed_child_takes_those_below_it_along_in_whatever_session(place):
    child = shell(place, "setsid sleep 600 & echo $!; wait")
    child.start()
    child.wait_until(lambda: child.log_tail() != "", timeout_s=WAIT_S)
    grandchild = int(child.log_tail())
    child.kill()
    wait_until(lambda: not process_exists(grandchild))


def test_a_child_that_ends_before_it_is_ready_is_an_error_with_its_last_lines(place):
    (place / "script.log").write_text("an earlier run\n")
    child = shell(place, "echo no such host; exit 3")
    child.start()
    with pytest.raises(StartFailed, match="exit code 3") as failure:
        child.wait_until(lambda: False, timeout_s=WAIT_S)
    assert "no such host" in failure.value.message
    assert "an earlier run" not in failure.value.message


def test_a_killed_child_is_started_again_and_it_is_said(place):
    said: list[str] = []
    child = shell(place, "exec sleep 600")
    child.start()
    keeper = Keeper(child, say=said.append)
    first = child.pid
    os.kill(first, signal.SIGKILL)

    def running_again() -> bool:
        keeper.tend()
        return child.pid != first and child.exit_code() is None

    wait_until(running_again)
    child.stop()
    assert ["SIGKILL" in line for line in said] == [True]


def test_a_child_that_fails_by_itself_at_once_is_not_tried_forever(place):
    child = shell(place, "echo no module named worker; exit 1")
    child.start()
    child.wait(WAIT_S)
    with pytest.raises(StartFailed, match="no module named worker"):
        Keeper(child, say=print).tend()
