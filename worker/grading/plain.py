"""The grading process without a sandbox, for operators who ask for it, and for measuring what a sandbox costs.

It protects its client from crashes, hangs and endless output, not from harm: the process has the client's user, and
with it the client's files, network and memory.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_BOOTSTRAP = "import sys; sys.path += sys.argv.pop().split('\\n'); from worker.grading.child import main; main()"


class PlainChild:
    """A child in a session of its own; it is killed when the thread that started it ends."""

    reason = None

    def __init__(self, connection: int, output: int, working_folder: Path) -> None:
        """Raises OSError."""
        self._process = subprocess.Popen(
            _command(connection),
            env={},
            cwd=working_folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[connection],
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_briefly(self) -> None:
        """It has hung up, and its exit status is settled already."""

    def end(self) -> int:
        """Kill it and what it started in its session, and reap it; the exit status, also when called again."""
        if self._process.returncode is None:  # not reaped yet, so the id is still its own
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        return self._process.wait()


def _command(descriptor: int) -> list[str]:
    """This interpreter, isolated (-I), without site configuration (-S); it finds packages where this process does."""
    packages = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    roots = "\n".join([str(_PACKAGE_ROOT), *packages])
    arguments = [str(descriptor), str(os.getpid()), roots]
    return [sys.executable, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOTSTRAP, *arguments]
