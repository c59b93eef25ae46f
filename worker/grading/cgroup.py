"""A cgroup (version 2) for each sandbox, where the worker has been given a part of the tree to itself.

There the kernel bounds memory and processes exactly, kernel memory and /tmp included, and ends all of a sandbox at
once. A part is given by systemd's `Delegate=yes`, by a container's own cgroup namespace, or by making it the user's:
https://docs.kernel.org/admin-guide/cgroup-v2.html#delegation. Where there is none, `worker.grading.memory` watches.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from worker.grading.limits import Limits

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = frozenset({"memory", "pids"})
LEAF = "podium-workers"
"""Where the processes go that stood in the part itself: a cgroup has processes, or controllers for what is below."""

_PREFIX = "podium-sandbox-"
_MOVES = 10
"""Rounds of moving: processes may start others meanwhile."""
_EMPTY_WITHIN_S = 2.0
_LOOK_AGAIN_S = 0.005


@dataclass(frozen=True, slots=True)
class Cgroup:
    """The one of a single sandbox."""

    path: Path
    limits: Limits

    @classmethod
    def create(cls, folder: Path, limits: Limits) -> "Cgroup":
        """In `folder`. Raises OSError, and leaves nothing then."""
        path = folder / f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        path.mkdir()
        try:
            for name, value in _settings(limits).items():
                (path / name).write_text(value)
        except OSError:
            path.rmdir()
            raise
        return cls(path, limits)

    def add(self, pid: int) -> None:
        """What the process starts from now on is in it as well. Raises OSError."""
        (self.path / "cgroup.procs").write_text(str(pid))

    @property
    def reason(self) -> str | None:
        """Why the kernel ended it, if it did."""
        try:
            events = (self.path / "memory.events").read_text().split()
        except OSError:
            return None
        kills = dict(zip(events[::2], events[1::2], strict=True)).get("oom_kill", "0")
        return None if kills == "0" else f"held more than {self.limits.memory_bytes / 1024**2:,.0f} MiB of memory"

    def end(self) -> None:
        """Kill whatever is in it, and remove it; what is left then, `folder_for_sandboxes` removes one day."""
        with contextlib.suppress(OSError):  # before Linux 5.14: init's end has ended all others by then
            (self.path / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + _EMPTY_WITHIN_S
        while not _is_removed(self.path) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_S)


@cache
def folder_for_sandboxes() -> Path | None:
    """Where cgroups can be made, as one was made for real; None where there is no such place."""
    for folder in candidates(MOUNT, Path("/proc/self/cgroup").read_text(), euid=os.geteuid()):
        with contextlib.suppress(OSError):
            if open_controllers(folder) and _holds_a_process(folder):
                _sweep(folder)
                return folder
    return None


def candidates(mount: Path, own: str, *, euid: int) -> Iterator[Path]:
    """Of the process whose /proc/PID/cgroup is `own`: its cgroup and the one above, where they are delegated."""
    line = next((line for line in own.splitlines() if line.startswith("0::/")), None)
    if (
        line is None or ".." in line or not (mount / "cgroup.controllers").exists()
    ):  # version 1, or both versions side by side
        return
    inside = mount / line.removeprefix("0::/")
    for folder in dict.fromkeys((inside, inside.parent)):
        if folder.is_relative_to(mount) and (is_ours_alone(folder, mount) or _is_owned_by(folder, euid)):
            yield folder


def is_ours_alone(folder: Path, mount: Path) -> bool:
    """As systemd marks what it delegates; or the root of a cgroup namespace (the real root has no type)."""
    if folder == mount:
        return (folder / "cgroup.type").exists()
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def open_controllers(folder: Path, mount: Path = MOUNT) -> bool:
    """Whether cgroups made in `folder` have the controllers; they are opened where it is ours alone. Raises OSError."""
    if _has(folder / "cgroup.subtree_control"):
        return True
    if not (_has(folder / "cgroup.controllers") and is_ours_alone(folder, mount)):
        return False
    _move_processes(folder)
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(CONTROLLERS)))
    return True


def _settings(limits: Limits) -> dict[str, str]:
    return {
        "memory.max": str(limits.memory_bytes),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": str(limits.processes),
    }


def _has(path: Path) -> bool:
    return set(path.read_text().split()) >= CONTROLLERS


def _is_owned_by(folder: Path, euid: int) -> bool:
    """Root owns all that nobody was given."""
    return euid != 0 and folder.exists() and folder.stat().st_uid == euid


def _move_processes(folder: Path) -> None:
    leaf = folder / LEAF
    leaf.mkdir(exist_ok=True)
    for _ in range(_MOVES):
        pids = (folder / "cgroup.procs").read_text().split()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)
        if not pids:
            return


def _holds_a_process(folder: Path) -> bool:
    """Raises OSError when it does not."""
    cgroup = Cgroup.create(folder, Limits())
    try:
        with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE, env={}) as process:
            cgroup.add(process.pid)
            process.communicate(b"\n")
    finally:
        cgroup.end()
    return process.returncode == 0


def _sweep(folder: Path) -> None:
    """Remove what workers that were killed have left: it is empty, because their sandboxes died with them."""
    for left in folder.glob(f"{_PREFIX}*"):
        pid = left.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", pid).exists():
            _is_removed(left)


def _is_removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError:  # somebody is still in it
        return False
    return True
