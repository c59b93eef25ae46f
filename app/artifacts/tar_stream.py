"""A tar archive that is never stored: its headers are computed, and every byte of it can be found by offset.

Sizes and digests of the members are known beforehand, so the archive's own size and identity are too. That is enough
for HEAD, Range and strong ETags over files that lie in the store once. The bytes are those that Python's `tarfile`
writes in PAX format (POSIX.1-2001) for the same members.
"""

import hashlib
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from app.downloads import OpenRange

MODIFIED_AT = 315_532_800
"""1980-01-01 UTC for every member: the same files always make the same archive."""


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    size_bytes: int
    sha256: str
    """Hex."""
    open_range: OpenRange


@dataclass(frozen=True, slots=True)
class _Segment:
    start: int
    size: int
    open_range: OpenRange


class VirtualTar:
    def __init__(self, members: Sequence[Member]) -> None:
        self._segments: list[_Segment] = []
        self.size_bytes = 0
        for member in members:
            self._append_bytes(_header(member))
            self._append(member.size_bytes, member.open_range)
            self._append_bytes(bytes(-member.size_bytes % tarfile.BLOCKSIZE))
        self._append_bytes(bytes(2 * tarfile.BLOCKSIZE))
        self._append_bytes(bytes(-self.size_bytes % tarfile.RECORDSIZE))
        self._starts = [segment.start for segment in self._segments]
        self.sha256 = _identity(members)
        """Of the members' names, sizes and digests: equal archives have it equal, without reading a byte."""

    def read(self, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Bytes `start` to before `end`; only the members that they touch are opened."""
        end = self.size_bytes if end is None else min(end, self.size_bytes)
        first = max(0, bisect_right(self._starts, start) - 1)
        for segment in self._segments[first:]:
            if segment.start >= end:
                return
            low, high = max(start - segment.start, 0), min(end - segment.start, segment.size)
            if low < high:
                yield from segment.open_range(low, high)

    def _append(self, size: int, open_range: OpenRange) -> None:
        if size:
            self._segments.append(_Segment(self.size_bytes, size, open_range))
            self.size_bytes += size

    def _append_bytes(self, data: bytes) -> None:
        self._append(len(data), lambda start, end: iter((data[start:end],)))


def _header(member: Member) -> bytes:
    info = tarfile.TarInfo(member.name)
    info.size = member.size_bytes
    info.mtime = MODIFIED_AT
    info.mode = 0o644
    return info.tobuf(format=tarfile.PAX_FORMAT, encoding="utf-8")


def _identity(members: Sequence[Member]) -> str:
    lines = (f"{member.sha256} {member.size_bytes} {member.name}\n" for member in members)
    return hashlib.sha256("".join(lines).encode()).hexdigest()
