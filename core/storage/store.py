"""The object store as everybody sees it: immutable bytes under a key, with a SHA-256.

Two implementations keep one contract (`tests/ledger/test_storage.py`): `core.storage.folder` and `core.storage.s3`.
Every method may raise `StoreUnavailable` (try again) or `StoreMisconfigured` (somebody must act).
"""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from core.errors import Conflict, NotFound, ServiceError, Unavailable

CHUNK_BYTES = 1024 * 1024
OCTETS = "application/octet-stream"
MAX_KEY_BYTES = 800
"""S3 allows 1,024 for the key with the store's own prefix."""

# A name may not begin with a dot: that keeps `.` and `..` out and leaves dot-names to the stores themselves.
_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@=+-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9_.@=+-]{0,199})*")


class StoreError(ServiceError):
    """Every error of an object store."""

    type = "server_error"


class ObjectNotFound(StoreError, NotFound):
    code = "object_not_found"
    default_fix = "The object was deleted or never written; the job's events say which."


class ObjectExists(StoreError, Conflict):
    """A conditional create met an object that is already there."""

    code = "object_exists"


class DigestMismatch(StoreError):
    """The bytes are not the ones that the SHA-256 promises. Nothing was kept."""

    code = "digest_mismatch"
    default_fix = "The bytes were damaged on the way or at rest: write them again, or use an older copy."


class InvalidKey(StoreError):
    """A key that is not a plain relative path: a fault of the caller, never of a client."""

    code = "invalid_object_key"


class StoreUnavailable(StoreError, Unavailable):
    code = "store_unavailable"


class StoreFull(StoreUnavailable):
    """There is no room for what should be written. Whoever waits for a store that is away may wait for room as well.

    Not every server says so: SeaweedFS without a free volume answers a plain 500, which is `StoreUnavailable`.
    """

    code = "store_full"
    default_fix = "Make room on the store's disk or raise its quota, then try again."


class StoreMisconfigured(StoreError):
    """The store answers, and will give the same answer until an operator changes something."""

    code = "store_misconfigured"
    status = 503


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    key: str
    size_bytes: int
    sha256: str | None
    """Hex. `head` knows it for every object that this service wrote; `list` does not say."""
    modified_at: datetime
    """By the store's clock: compare it with `ObjectStore.clock()`, never with this machine's."""


class Proof(StrEnum):
    """What a self-test can show of a store."""

    READS_BACK = "reads_back"
    CONDITIONAL_CREATE = "conditional_create"
    """A second create of the same key is refused."""
    CHECKSUM = "checksum"
    """Bytes that are not what their SHA-256 says are refused."""
    SIGNATURE = "signature"
    """A request that is signed with another secret is refused."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    proved: tuple[Proof, ...]
    seconds: float


class ObjectStore(Protocol):
    """Synchronous and thread-safe. A reader sees a whole object or none, never a part of one.

    Keys form a tree: where there is an object `a`, there may be none `a/b`.
    """

    def put_file(self, key: str, path: Path, *, sha256: str, content_type: str = OCTETS) -> None:
        """Store the file, replacing what was there. Raises `DigestMismatch` if it is not what `sha256` (hex) says."""

    def put_bytes(self, key: str, data: bytes, *, content_type: str = OCTETS) -> str:
        """Store `data`, replacing what was there, and return its SHA-256 in hex."""

    def put_new_bytes(self, key: str, data: bytes, *, content_type: str = OCTETS) -> str:
        """Store `data` only if the key is free, else raise `ObjectExists`; of racing writers exactly one wins.

        After a lost answer the retry meets its own object: read before you conclude that somebody else was first.
        """

    def get_file(self, key: str, path: Path, *, sha256: str | None) -> None:
        """Fetch into `path`, which appears at once and whole, and only if the digest is right (None: any)."""

    def get_bytes(self, key: str) -> bytes: ...

    def open(self, key: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Bytes `start` to before `end`, in pieces of at most 1 MiB; what lies beyond the object's end is left out.

        `start < end`. A missing object raises here, not at the first piece.
        """

    def head(self, key: str) -> ObjectInfo | None: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object under `prefix`, in any order. A prefix is "" or ends with a slash."""

    def delete(self, key: str) -> None:
        """A missing object is no error."""

    def delete_prefix(self, prefix: str) -> None:
        """Delete every object under `prefix`, which ends with a slash."""

    def abort_uploads(self, older_than_s: float) -> int:
        """Give up writes that began so long ago and never ended, and free what they hold; how many they were.

        The writer of one that still lives meets an error, and has to begin again.
        """

    def clock(self) -> datetime:
        """The time by which `modified_at` is told."""

    def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
        """A URL that downloads this object without our key, or None if clients cannot reach the store."""

    def check(self) -> SelfTest:
        """Prove with real objects that the store keeps what this service builds on; raise what is wrong, with a fix."""


def check_key(key: str) -> str:
    if len(key.encode(errors="replace")) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise InvalidKey(f"{key!r} is not an object key: names of letters, digits and ._@=+- joined by single slashes.")
    return key


def check_prefix(prefix: str) -> str:
    """A prefix ends with a slash, so that `jobs/1/` never reaches `jobs/10/`."""
    if not prefix.endswith("/"):
        raise InvalidKey(f"{prefix!r} is not a prefix: it must end with a slash.")
    check_key(prefix.removesuffix("/"))
    return prefix


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def arriving(path: Path, *, sha256: str | None) -> Iterator[Path]:
    """A place beside `path` to fetch into; it becomes `path` at the end of the block, if its digest is right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{uuid4().hex}.partial")
    try:
        yield partial
        if sha256 is not None:
            require_digest(digest_of(partial), sha256, path.name)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def require_digest(actual: str, expected: str, what: str) -> None:
    if actual != expected:
        raise DigestMismatch(f"{what} has SHA-256 {actual}, expected {expected}.")
