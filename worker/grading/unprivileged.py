"""`python unprivileged.py UID PATHS PROGRAM ARGUMENT...`: root becomes a program of a user that owns nothing.

`bwrap --unshare-user --uid N` renames root, but what it starts is still root to the file system and to the kernel's
limits. So the real ids go first. Where the interpreter stands in a folder that only root may enter (`/root/...`), the
PATHS that are needed (one a line) are shown to the new user, in a mount namespace of this process alone.

It runs as a file, on as little of the standard library as it can: every start of a sandbox waits for it.
"""

import ctypes
import os
import stat
import sys
from collections.abc import Iterator

_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_NOSUID_NODEV = 0x1000, 0x4000, 1 << 18, 0x2 | 0x4
_CLONE_NEWNS = 0x20000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SIGKILL = 9

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    uid, paths, command = int(sys.argv[1]), sys.argv[2].split("\n"), sys.argv[3:]
    closed = {path: folder for path in paths if (folder := _closed_folder(path)) is not None}
    if closed:
        _show(closed)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _check(_libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    os.execve(command[0], command, {})  # noqa: S606 - bwrap


def _parents(path: str) -> Iterator[str]:
    """From the outermost folder on."""
    parts = path.split("/")
    return ("/".join(parts[:count]) or "/" for count in range(1, len(parts)))


def _closed_folder(path: str) -> str | None:
    """The outermost folder above `path` that others may not enter."""
    return next((folder for folder in _parents(path) if not os.stat(folder).st_mode & stat.S_IXOTH), None)


def _show(closed: dict[str, str]) -> None:
    """Put an open folder over each closed one, with nothing in it but the paths, for this process only."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare(CLONE_NEWNS)")
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    outermost = [path for path in closed if not any(parent in closed for parent in _parents(path))]
    sources = {path: os.open(path, os.O_PATH) for path in outermost}
    for folder in set(closed.values()):
        _mount("podium", folder, "tmpfs", _MS_NOSUID_NODEV, "mode=0755")
    for path, descriptor in sources.items():
        _make_place(path, is_folder=stat.S_ISDIR(os.fstat(descriptor).st_mode))
        _mount(f"/proc/self/fd/{descriptor}", path, "", _MS_BIND | _MS_REC)
        os.close(descriptor)


def _make_place(path: str, *, is_folder: bool) -> None:
    os.makedirs(path if is_folder else path.rpartition("/")[0], exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    words = (os.fsencode(word) for word in (source, target, kind))
    _check(_libc.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount({target})")


def _check(result: int, call: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{call}: {os.strerror(code)}")


if __name__ == "__main__":
    main()
