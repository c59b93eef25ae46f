"""The supervisor as its Celery task sees it: a child that the worker forks, and leaves nothing of its own in.

Forked, because a new interpreter would load for a second what the worker has loaded already. The pool child that forks
has one thread and no connection but the broker's; the child drops that, so a broker never sees a supervisor.
"""

import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import structlog
from setproctitle import setproctitle

from core.ids import JobId
from worker import supervisor
from worker.main import SUPERVISOR_MARK, is_stopping
from worker.parent import die_with

_LEFT_ALONE = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
"""Nobody can handle the first two; a new interpreter ignores the others too."""


def start(job_id: JobId) -> int:
    """The process id. For a process with one thread, from that thread.

    Signals wait until the child has its own handlers: one that came before would run its parent's.
    """
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    try:
        child = os.fork()
        if child == 0:
            _supervise(job_id, parent, before)
        return child
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait(child: int) -> int:
    """Its exit code; of one that a signal ended, minus the signal's number."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _supervise(job_id: JobId, parent: int, mask: set[int]) -> NoReturn:
    """What happens in the child; it never returns into its parent's frames."""
    try:
        os.setsid()
        setproctitle(f"{Path(sys.executable).name} -m {SUPERVISOR_MARK} {job_id}")
        if is_stopping():  # the worker may have looked for supervisors when this one had no name yet
            os._exit(0)
        _forget_handlers()
        _forget_descriptors()
        structlog.contextvars.clear_contextvars()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        die_with(parent, signal.SIGTERM)
        supervisor.run(job_id)
    except BaseException:  # noqa: BLE001 - whatever it is, the frames below are the parent's
        with suppress(OSError):
            traceback.print_exc(file=sys.__stderr__)
        os._exit(1)


def _forget_handlers() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - _LEFT_ALONE:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _forget_descriptors() -> None:
    """Beyond the standard three each becomes /dev/null. If it were closed, its number would soon be that of a database
    connection, and an object of the parent that ends in this process would close that."""
    null = os.open(os.devnull, os.O_RDWR)
    for path in list(Path("/proc/self/fd").iterdir()):  # the last is the listing's own, which is closed by now
        number = int(path.name)
        if number > 2 and number != null:
            os.dup2(null, number, inheritable=False)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
