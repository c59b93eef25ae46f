"""What a forked supervisor has of the worker that forked it: nothing but what was loaded."""

import json
import signal
import subprocess
import sys
from typing import Any

from core.settings import CHECKOUT

SCRIPT = """
import json, os, signal, socket, sys
from core.ids import JobId
from worker import supervisor, supervisor_process

broker, far_end = socket.socketpair()
signal.signal(signal.SIGTERM, lambda *_: print("the parent's handler", flush=True))
signal.signal(signal.SIGINT, signal.SIG_IGN)
parent = os.getpid()

def run(job_id):
    {body}
    sys.stdout.flush()
    os._exit(0)

supervisor.run = run
{before}
child = supervisor_process.start(JobId("ftjob-1"))
far_end.close()
{meanwhile}
print(json.dumps({{"code": supervisor_process.wait(child), "broker": broker.recv(1).decode()}}))
"""


def fork(body: str, meanwhile: str = "", before: str = "") -> tuple[list[Any], str]:
    """What the supervisor prints with `body`, then its exit code; and standard error. In an interpreter of its own,
    because this one has threads."""
    script = SCRIPT.format(body=body, meanwhile=meanwhile, before=before)
    finished = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in finished.stdout.splitlines()], finished.stderr


def test_it_has_a_session_and_a_name_of_its_own_and_the_handlers_of_a_new_process():
    title = "open('/proc/self/cmdline').read().rstrip(chr(0)).split()[1:]"
    handlers = "[int(signal.getsignal(signal.SIGTERM)), signal.getsignal(signal.SIGINT).__name__]"
    blocked = "list(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    body = f"print(json.dumps([os.getsid(0) == os.getpid() != parent, {title}, {handlers}, {blocked}]))"
    (found, ended), _ = fork(body)
    assert found == [True, ["-m", "worker.supervisor", "ftjob-1"], [int(signal.SIG_DFL), "default_int_handler"], []]
    assert ended["code"] == 0


def test_it_holds_no_descriptor_of_its_parent_and_closes_none_of_its_own_by_mistake():
    """The parent reads the end of its connection, although the child still has the number, and the object."""
    body = (
        "link = os.readlink(f'/proc/self/fd/{far_end.fileno()}'); far_end.close(); "
        "inherited = [os.path.realpath(f'/proc/self/fd/{n}') for n in range(3, broker.fileno() + 1)"
        " if os.path.exists(f'/proc/self/fd/{n}')]; "
        "print(json.dumps([link, sorted(set(inherited))]))"
    )
    (found, ended), _ = fork(body)
    assert found == ["/dev/null", ["/dev/null"]]
    assert ended == {"code": 0, "broker": ""}


def test_one_that_cannot_go_on_says_why_and_does_not_go_on_as_its_parent():
    (ended,), error = fork("raise ValueError('no settings')")
    assert ended["code"] == 1
    assert "ValueError: no settings" in error


def test_it_hears_a_signal_that_came_before_it_was_ready():
    meanwhile = "os.kill(child, signal.SIGTERM)"
    (ended,), _ = fork("import time; time.sleep(60)", meanwhile)
    assert ended["code"] == -signal.SIGTERM


def test_one_that_a_shutdown_could_not_see_yet_does_not_begin():
    """The worker looks for supervisors by their names; this one gets its name after that look."""
    title = "import time, worker.main; late = supervisor_process.setproctitle; "
    title += "supervisor_process.setproctitle = lambda name: (time.sleep(0.5), late(name))"
    (ended,), error = fork(
        "raise AssertionError('it began')", "import worker.main; worker.main._stopping[0] = 1", title
    )
    assert (ended["code"], error) == (0, "")


def test_it_is_told_when_its_parent_dies():
    """By the kernel, also where the parent has no time for a word."""
    body = (
        "import time; "
        "signal.signal(signal.SIGTERM, lambda *_: (print('[\"told\"]', flush=True), os._exit(0))); "
        "os.kill(parent, signal.SIGKILL); time.sleep(60)"
    )
    script = SCRIPT.format(body=body, meanwhile="", before="")
    with subprocess.Popen([sys.executable, "-c", script], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == ["told"]
    assert process.returncode == -signal.SIGKILL
