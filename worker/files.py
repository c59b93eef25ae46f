"""Files of a run: written whole or not at all, and read from the end, emptied from the start."""

import ctypes
import os
import threading
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write beside the target, sync, rename: a reader sees the old file or the new one, never a part or a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)


def tail(path: Path, *, lines: int = 20, max_bytes: int = 16_384) -> str:
    """The last `lines` of a log, for an error message."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - max_bytes))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])


def punch_hole(path: Path, size_bytes: int) -> None:
    """The first bytes become a hole, offsets stay (fallocate(2)). A file system that has no holes keeps them."""
    with path.open("r+b") as file:
        _libc.fallocate(file.fileno(), _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(size_bytes))


_libc = ctypes.CDLL(None)
_PUNCH_HOLE = 0x01 | 0x02
"""FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE."""
