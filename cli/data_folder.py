"""The folder in which a local stack lives: who holds it, its parts, and how to reach it."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from cli.errors import FolderInUse, FolderUnusable
from core.settings import CHECKOUT

DEFAULT_DATA_FOLDER = CHECKOUT / ".podium"


class Connection(BaseModel):
    """`connection.json`: there exactly while the stack is ready."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    api_key: str
    pid: int


@dataclass(frozen=True, slots=True)
class DataFolder:
    root: Path

    @property
    def postgres(self) -> Path:
        return self.root / "postgres"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def api_key(self) -> Path:
        """The secret, so that the next start has the same one."""
        return self.root / "api_key"

    @property
    def connection(self) -> Path:
        return self.root / "connection.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def make(self) -> None:
        """Raises FolderUnusable."""
        try:
            for private in (self.root, self.store, self.runs, self.logs):
                private.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise FolderUnusable(f"The data folder {self.root} cannot be made: {error}.", param="data") from error

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder for the length of the block. Raises FolderInUse; the kernel lets go if we are killed."""
        with (self.root / "lock").open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.seek(0)
                raise FolderInUse.of(self.root, pid=lock.read().strip()) from None
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            yield

    def is_held(self) -> bool:
        """Whether a podium runs on this folder now."""
        if not self.root.exists():
            return False
        try:
            with self.held():
                return False
        except FolderInUse:
            return True

    def read_connection(self) -> Connection | None:
        """How to reach the stack that runs here now; None when none does."""
        try:
            return Connection.model_validate_json(self.connection.read_text())
        except (FileNotFoundError, ValidationError):
            return None

    def write_connection(self, connection: Connection) -> None:
        write_secret(self.connection, connection.model_dump_json(indent=2) + "\n")


def write_secret(path: Path, text: str) -> None:
    """Whole or not at all, and readable by the owner only from the first byte."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.replace(path)
