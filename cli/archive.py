"""Unpacking what a server sent: only plain files and folders, only below the target."""

import shutil
import tarfile
from pathlib import Path, PurePosixPath

from cli.errors import UnsafeArchive


def unpack(archive: Path, target: Path) -> list[Path]:
    """Extract a tar and return the files written. Raises UnsafeArchive before the first unsafe member is touched."""
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        for member in members:
            _require_safe(member)
        return [_extract(tar, member, target) for member in members if member.isfile()]


def _require_safe(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
        raise UnsafeArchive(f"The archive has a member {member.name!r} that is no plain file inside it.")


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> Path:
    source = tar.extractfile(member)
    assert source is not None, "checked to be a plain file"
    path = target / member.name
    path.parent.mkdir(parents=True, exist_ok=True)
    with source, path.open("wb") as file:
        shutil.copyfileobj(source, file)
    return path
