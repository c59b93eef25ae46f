"""The trainer as its supervisor sees it: a child process in its own session, told to stop by a signal."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from core import failpoints
from core.settings import Settings
from worker.grading.rules import GradingRules
from worker.parent import killed_with_parent, parent_environment
from worker.run_directory import STACKS_SIGNAL, RunDirectory

log = structlog.get_logger()

TRAINER_MODULE = "worker.training.run"
PASSED_ON_PREFIXES = (
    *("HF_", "TOKENIZERS_", "TORCH", "PYTORCH", "VLLM_"),
    *("CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_"),
)
"""Variables that a trainer may see. Everything else stays behind: it needs no key to anything of ours."""
PASSED_ON = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *(failpoints.VARIABLE, failpoints.LOG_VARIABLE),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)
CHECKOUT = Path(__file__).resolve().parent.parent


class TrainerProcess:
    """Started from the main thread; `stop` and `kill` may be called from any thread, at any time, more than once."""

    def __init__(self, run: RunDirectory, settings: Settings) -> None:
        self._run = run
        self._settings = settings
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._forbidden = False
        self._hurry_timer: threading.Timer | None = None
        self._kill_timer: threading.Timer | None = None

    def start(self) -> None:
        """Start it, unless it was stopped or killed before it could start. Raises `OSError` for a bad interpreter."""
        python = self._settings.trainer_python or Path(sys.executable)
        if not os.access(python, os.X_OK):
            raise FileNotFoundError(errno.ENOENT, "there is no such program", str(python))
        with self._lock, self._run.log.open("ab") as output:
            if self._forbidden:
                return
            self._process = subprocess.Popen(
                killed_with_parent(python, "-m", TRAINER_MODULE, str(self._run.path)),
                cwd=CHECKOUT,
                env=trainer_environment(os.environ) | self._grading_rules() | parent_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        log.info("trainer_started", pid=self._process.pid)

    def _grading_rules(self) -> dict[str, str]:
        settings = self._settings
        rules = GradingRules(
            run_without_sandbox=settings.run_reward_code_without_sandbox,
            memory_bytes=settings.reward_memory_bytes,
            allow_private_reward_urls=settings.allow_private_reward_urls,
        )
        return rules.as_environment()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code, or None after `timeout_s`; negative for the signal that ended it.

        A trainer that was stopped before it started has ended at once, with 0.
        """
        if self._process is None:
            return 0
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def pause(self) -> None:
        """Ask for a stop at the next step boundary, with as much time as that takes."""
        with self._lock:
            self._forbidden = True
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(signal.SIGINT)
                log.info("trainer_told_to_pause", pid=self._process.pid)

    def show_stacks(self) -> None:
        """Let its processes write the stacks of all their threads into trainer.log, if they still can. It is to be
        killed next: its graders do not know the signal, and end of it.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                _signal_group(self._process.pid, STACKS_SIGNAL)

    def stop(self, time_left_s: float = 0.0) -> None:
        """Ask for a stop at the next step boundary, and see to it that it comes within the grace.

        With more time than the grace it may first end its step in peace, and is hurried when the grace begins.
        """
        spare_s = time_left_s - self._settings.stop_grace_s
        if spare_s > 0:
            self.pause()
            self._hurry_timer = _started_timer(spare_s, self.stop)
            return
        with self._lock:
            self._forbidden = True
            if self._process is None or self._process.poll() is not None or self._kill_timer is not None:
                return
            self._process.send_signal(signal.SIGTERM)
            self._kill_timer = _started_timer(self._settings.stop_grace_s, self.kill)

    def kill(self) -> None:
        """End the whole session at once: the trainer and the graders that it started."""
        with self._lock:
            self._forbidden = True
            if self._process is not None:
                _signal_group(self._process.pid, signal.SIGKILL)

    def clean_up(self) -> None:
        """Leave nothing behind, whatever happened."""
        for timer in (self._hurry_timer, self._kill_timer):
            if timer is not None:
                timer.cancel()
        self.kill()
        self.wait(timeout_s=5)


def trainer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What of this process's environment a trainer gets: no database, no broker, no store, no secret of theirs."""
    return {
        name: value for name, value in environment.items() if name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)
    }


def _started_timer(seconds: float, call: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        log.debug("trainer_already_gone", pid=pid)
