"""Objects as plain files under one folder, for a single machine: what is visible is whole and on the disk."""

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from io import BufferedReader
from pathlib import Path
from uuid import uuid4

from core import keys
from core.errors import FULL_DISK_ERRNOS
from core.storage.store import (
    CHUNK_BYTES,
    OCTETS,
    DigestMismatch,
    ObjectExists,
    ObjectInfo,
    ObjectNotFound,
    Proof,
    SelfTest,
    StoreError,
    StoreFull,
    StoreMisconfigured,
    StoreUnavailable,
    arriving,
    check_key,
    check_prefix,
    require_digest,
)

SHA256_ATTRIBUTE = "user.podium.sha256"
"""The digest rides on the file itself (xattr(7)), so that bytes and digest appear in one rename."""
PARTIAL_FOLDER = ".partial"
_OPERATOR_ERRNOS = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_FOLDER_FIX = "Let this process write to the folder in PODIUM_STORE_URL (owner, mount), or name another folder."


class FolderStore:
    def __init__(self, root: Path) -> None:
        self.root = root

    def put_file(self, key: str, path: Path, *, sha256: str, content_type: str = OCTETS) -> None:
        with path.open("rb") as source:
            self._write(key, iter(partial(source.read, CHUNK_BYTES), b""), sha256)

    def put_bytes(self, key: str, data: bytes, *, content_type: str = OCTETS) -> str:
        return self._write(key, [data])

    def put_new_bytes(self, key: str, data: bytes, *, content_type: str = OCTETS) -> str:
        return self._write(key, [data], only_new=True)

    def get_file(self, key: str, path: Path, *, sha256: str | None) -> None:
        with arriving(path, sha256=sha256) as target, target.open("wb") as file:
            file.writelines(self.open(key))

    def get_bytes(self, key: str) -> bytes:
        return b"".join(self.open(key))

    def open(self, key: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        pieces = self._pieces(key, start, end)
        next(pieces)  # opens the file now, so that a missing object raises here
        return pieces

    def head(self, key: str) -> ObjectInfo | None:
        try:
            with self._reading(key), self._path(key).open("rb") as file:
                return _info(key, os.fstat(file.fileno()), _digest_of(file))
        except ObjectNotFound:
            return None

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder = self.root / check_prefix(prefix) if prefix else self.root
        with self._reading(prefix):
            walk = os.walk(folder, onerror=_raise_unless_gone)
            paths = [Path(parent, name) for parent, _, names in walk for name in names]
        for path in paths:
            key = path.relative_to(self.root).as_posix()
            with suppress(FileNotFoundError):  # deleted meanwhile
                if not key.startswith(PARTIAL_FOLDER):
                    yield _info(key, path.stat(), None)

    def delete(self, key: str) -> None:
        with suppress(ObjectNotFound), self._reading(key):
            self._path(key).unlink()

    def delete_prefix(self, prefix: str) -> None:
        for info in self.list(check_prefix(prefix)):
            self.delete(info.key)
        for folder, _, _ in os.walk(self.root / prefix, topdown=False):
            with suppress(OSError):  # somebody writes there again
                Path(folder).rmdir()

    def abort_uploads(self, older_than_s: float) -> int:
        before, aborted = self.clock() - timedelta(seconds=older_than_s), 0
        with self._writing(), suppress(FileNotFoundError):  # no folder: nothing was ever written
            for draft in (self.root / PARTIAL_FOLDER).iterdir():
                with suppress(FileNotFoundError):  # its writer was faster
                    if _modified_at(draft.stat()) <= before:  # each write makes it young again
                        draft.unlink()
                        aborted += 1
        return aborted

    def clock(self) -> datetime:
        return datetime.now(UTC)

    def presign(self, key: str, *, filename: str, content_type: str, expires_s: int) -> str | None:
        return None

    def check(self) -> SelfTest:
        began_at, key = time.monotonic(), keys.probe(uuid4().hex)
        digest = self.put_new_bytes(key, b"probe")
        try:
            self._require_refusal(ObjectExists, "creates what is there already", lambda: self.put_new_bytes(key, b"x"))
            self._require_refusal(DigestMismatch, "takes wrong bytes", lambda: self._write(key, [b"x"], digest))
            if self.get_bytes(key) != b"probe":
                raise StoreMisconfigured("The store's folder does not give back what was written.", fix=_FOLDER_FIX)
        finally:
            self.delete(key)
        proved = (Proof.READS_BACK, Proof.CONDITIONAL_CREATE, Proof.CHECKSUM)
        return SelfTest(proved, time.monotonic() - began_at)

    def _require_refusal(self, refusal: type[StoreError], sin: str, write: Callable[[], object]) -> None:
        try:
            write()
        except refusal:
            return
        raise StoreMisconfigured(f"The store's folder {sin}.", fix=_FOLDER_FIX)

    def _write(self, key: str, pieces: Iterable[bytes], sha256: str | None = None, *, only_new: bool = False) -> str:
        """Write beside, sync, then show in one step. Returns the digest; if it is not `sha256`, nothing is shown."""
        target = self._path(key)
        draft = self.root / PARTIAL_FOLDER / uuid4().hex
        with self._writing():
            draft.parent.mkdir(parents=True, exist_ok=True)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                digest = _write_draft(draft, pieces)
                if sha256 is not None:
                    require_digest(digest, sha256, key)
                _show(draft, target, only_new=only_new)
            finally:
                draft.unlink(missing_ok=True)
            self._sync_folders(target)
        return digest

    def _sync_folders(self, target: Path) -> None:
        """A rename survives a power cut once its folder is synced, and so does each folder that had to be made."""
        for folder in target.parents:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if folder == self.root:
                break

    def _pieces(self, key: str, start: int, end: int | None) -> Iterator[bytes]:
        with self._reading(key), self._path(key).open("rb") as file:
            left = (os.fstat(file.fileno()).st_size if end is None else end) - start
            file.seek(start)
            yield b""
            while left > 0 and (piece := file.read(min(CHUNK_BYTES, left))):
                left -= len(piece)
                yield piece

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            raise ObjectNotFound(f"There is no object {key}.") from error
        except OSError as error:
            raise self._failure(error) from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> StoreError:
        if error.errno in FULL_DISK_ERRNOS:
            return StoreFull(f"The store's folder has no room: {error.strerror}.")
        if error.errno in _OPERATOR_ERRNOS:
            return StoreMisconfigured(f"The store's folder cannot be used: {error.strerror}.", fix=_FOLDER_FIX)
        return StoreUnavailable(f"The store's folder failed: {error.strerror}.")


def _info(key: str, status: os.stat_result, sha256: str | None) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, sha256, _modified_at(status))


def _modified_at(status: os.stat_result) -> datetime:
    return datetime.fromtimestamp(status.st_mtime, UTC)


def _write_draft(draft: Path, pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    with draft.open("xb") as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
        file.flush()
        with suppress(OSError):  # a file system without extended attributes: `head` computes
            os.setxattr(file.fileno(), SHA256_ATTRIBUTE, digest.hexdigest().encode())
        os.fsync(file.fileno())
    return digest.hexdigest()


def _show(draft: Path, target: Path, *, only_new: bool) -> None:
    if not only_new:
        draft.replace(target)
        return
    try:
        target.hardlink_to(draft)  # unlike a rename, link(2) refuses a name that is taken
    except FileExistsError as error:
        raise ObjectExists(f"There is an object {target.name} already.") from error


def _digest_of(file: BufferedReader) -> str:
    try:
        return os.getxattr(file.fileno(), SHA256_ATTRIBUTE).decode()
    except OSError:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
