"""Who the processes of a sandbox are to the rest of the machine, and whether they can read what they need."""

import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

UIDS = range(1_900_000_000, 1_900_065_536)
"""For the sandboxes of root: users that neither shadow's subordinate ids nor systemd's ranges hand out."""
FEW_UIDS = range(50_000, 60_000)
"""Where root is itself inside a user namespace of 65,536 ids, as in rootless containers."""

_SELF = Path("/proc/self")
_SYSTEM = Path("/usr")
_EVERYBODY_READS, _EVERYBODY_ENTERS = stat.S_IROTH, stat.S_IROTH | stat.S_IXOTH


def user_to_become(process: Path = _SELF) -> int | None:
    """For root, a user that owns nothing: one of many, so that two sandboxes hardly ever share it. None for anybody
    else, and for a root who is somebody else outside of a user namespace that has no other ids: they stay who they are.

    Raises OSError for a root who is root outside too, and can become nobody.
    """
    if os.geteuid() != 0:
        return None
    for uids in (UIDS, FEW_UIDS):
        if _can_become(process, uids):
            return secrets.choice(uids)
    if _outside(process / "uid_map", 0) == 0:
        raise OSError(
            "root cannot become another user here: its user namespace has no other ids, and leads to root itself"
        )
    return None


def unreadable(paths: Iterable[Path]) -> list[Path]:
    """Those of `paths` that only their owner can read, or that hold what only their owner can read."""
    return [path for path in paths if not _is_readable(path) or any(not _is_readable(one) for one in _inside(path))]


def _can_become(process: Path, uids: range) -> bool:
    if (process / "setgroups").read_text().strip() == "deny":
        return False
    maps = (process / "uid_map", process / "gid_map")
    return all(_outside(path, uid) is not None for path in maps for uid in (uids[0], uids[-1]))


def _outside(path: Path, number: int) -> int | None:
    """What the id is in the user namespace around this one (user_namespaces(7)); None where it is not mapped."""
    for line in path.read_text().splitlines():
        first, outside, count = map(int, line.split())
        if first <= number < first + count:
            return outside + number - first
    return None


def _inside(path: Path) -> Iterator[Path]:
    """One level: a umask closes all of an installation. What the system keeps from people is its own choice."""
    if path.is_dir() and not path.is_relative_to(_SYSTEM):
        yield from (one for one in path.iterdir() if one.name != "__pycache__")


def _is_readable(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:  # a dangling link
        return True
    wanted = _EVERYBODY_ENTERS if stat.S_ISDIR(mode) else _EVERYBODY_READS
    return mode & wanted == wanted
