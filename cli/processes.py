"""The stack's child processes: each with its own log and session, and none outlives its parent."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cli.errors import StartFailed
from cli.interrupts import pause

LOG_ROTATE_BYTES = 10 * 1024 * 1024
LOG_TAIL_BYTES = 64 * 1024
POLL_S = 0.02
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
EARLY_S = 10.0
LONG_LIFE_S = 60.0
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Account:
    """The system account that a child runs as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, and how it likes to be stopped."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to this process's own environment."""
    folder: Path | None = None
    account: Account | None = None
    pass_fds: tuple[int, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace_s: float = 10.0
    """After this long without an end, SIGKILL."""
    death_signal: signal.Signals = signal.SIGKILL
    """What the kernel sends it when this process dies (PR_SET_PDEATHSIG, prctl(2))."""


class Child:
    """One program as our child. Start it from the main thread: it dies with the thread that forked it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.program.name} was not started"
        return self._process.pid

    def start(self) -> None:
        program, account = self.program, self.program.account
        _rotate(program.log)
        with program.log.open("ab") as log:
            self._log_offset = log.tell()
            self._process = subprocess.Popen(
                program.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | program.env,
                cwd=program.folder,
                start_new_session=True,
                pass_fds=program.pass_fds,
                # Runs after setuid, which would clear the death signal.
                preexec_fn=_die_with_parent(program.death_signal),  # noqa: PLW1509 - one prctl, before any thread
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )

    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_until(self, ready: Callable[[], bool], *, timeout_s: float) -> None:
        """Poll `ready`. Raises StartFailed with the log's end if the child ends first or time runs out."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.fail_if_ended()
            if time.monotonic() > deadline:
                raise self.failed(f"was not ready after {timeout_s:.0f} s")
            pause(POLL_S)

    def fail_if_ended(self) -> None:
        code = self.exit_code()
        if code is not None:
            raise self.failed(f"ended with {describe_exit(code)} before it was ready")

    def wait(self, timeout_s: float) -> int:
        """The exit code of a program that ends by itself; killed, and so -9, when time runs out."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return -signal.SIGKILL

    def ask_to_stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(self.program.stop_signal)

    def stop(self) -> None:
        """Ask, wait for the grace, then kill; harmless when it has ended or never started."""
        if self._process is None:
            return
        self.ask_to_stop()
        try:
            self._process.wait(self.program.stop_grace_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._kill_session()

    def kill(self) -> None:
        """At once, with everything below it, in whatever session."""
        if self._process is None:
            return
        family = _descendants(self.pid)
        self._kill_session()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()

    def log_tail(self, lines: int = 15) -> str:
        """The last lines that this run wrote."""
        with self.program.log.open("rb") as log:
            log.seek(max(self._log_offset, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = log.read().decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def failed(self, what: str) -> StartFailed:
        return StartFailed.of(self.program.name, what, log=self.program.log, tail=self.log_tail())

    def _kill_session(self) -> None:
        """What the child itself started and left in its process group goes too."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Keeper:
    """Keeps a child running: when it ends unasked it is started again, each time after a longer pause."""

    def __init__(self, child: Child, *, say: Callable[[str], None]) -> None:
        self.child = child
        self._say = say
        self._pause_s = FIRST_PAUSE_S
        self._started_at = time.monotonic()
        self._due_at: float | None = None

    def tend(self) -> None:
        """Call often. Raises StartFailed for a program that fails by itself in its first seconds."""
        now = time.monotonic()
        if self._due_at is None:
            code = self.child.exit_code()
            if code is not None:
                self._plan_restart(code, now)
        elif now >= self._due_at:
            self.child.start()
            self._started_at, self._due_at = now, None

    def _plan_restart(self, code: int, now: float) -> None:
        first_life = self._pause_s == FIRST_PAUSE_S
        lived_s = now - self._started_at
        if first_life and code > 0 and lived_s < EARLY_S:
            raise self.child.failed(f"ended with {describe_exit(code)} as soon as it was started")
        if lived_s > LONG_LIFE_S:
            self._pause_s = FIRST_PAUSE_S
        name, log = self.child.program.name, self.child.program.log
        self._say(f"{name} ended with {describe_exit(code)}; starting it again in {self._pause_s:.0f} s ({log})")
        self._due_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


def python_module(module: str, *arguments: str) -> tuple[str, ...]:
    """The command line of one of our own modules, in this interpreter."""
    return (sys.executable, "-m", module, *arguments)


def describe_exit(code: int) -> str:
    """`exit code 3`, or `SIGKILL` for -9 (subprocess's convention)."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def process_exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _descendants(pid: int) -> list[psutil.Process]:
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        family += psutil.Process(pid).children(recursive=True)
    return family


def _rotate(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_ROTATE_BYTES:
        log.replace(log.with_suffix(log.suffix + ".1"))


def _die_with_parent(death_signal: signal.Signals) -> Callable[[], None]:
    parent = os.getpid()

    def set_death_signal() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, death_signal.value)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return set_death_signal
