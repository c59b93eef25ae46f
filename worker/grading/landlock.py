"""Landlock, the second layer: the kernel's own list of what this process and its children may touch.

It does not depend on mounts or namespaces: were reward code to get out of them, it could still read only what hangs
below the paths named here. Rights and structures: landlock(7) and <linux/landlock.h>. The libraries on the package
index are young or unkept, and this is three system calls.
"""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""The numbers are the same on every architecture."""
_ASK_VERSION = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG, _MAKE_SYM = 1 << 4, 1 << 5, 1 << 7, 1 << 8, 1 << 12
_FIRST_RIGHTS = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_LATER_RIGHTS = {2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
"""By the version that brought them."""
_TCP = 0b11
"""Binding and connecting, since version 4; no rule allows either."""
_SCOPES = 0b11
"""Abstract Unix sockets and signals of others, since version 6."""

_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _READ | _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _MAKE_SYM | _REFER


def restrict(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """Confine this thread, and all that it starts, to these files and folders; needs no_new_privs.

    Returns the version of Landlock that does it, 0 where the kernel has none. Raises OSError when it has one that
    fails.
    """
    version = _version()
    if version == 0:
        return 0
    handled = _FIRST_RIGHTS | sum(right for since, right in _LATER_RIGHTS.items() if since <= version)
    attributes = struct.pack("=QQQ", handled, _TCP, _SCOPES)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ & handled)
        for path in writable:
            _allow(ruleset, path, _WRITE & handled)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    return version


def _version() -> int:
    try:
        return _call(_CREATE_RULESET, None, 0, _ASK_VERSION)
    except OSError:  # ENOSYS: not built in; EOPNOTSUPP: switched off; EPERM: a container's filter
        return 0


def _allow(ruleset: int, path: Path, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, descriptor), 0)
    finally:
        os.close(descriptor)


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    widened = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *widened)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
