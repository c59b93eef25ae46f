"""What reward code can do to its process, and that only the rollouts at fault pay for it."""

import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.grading import on, rollout, values
from tests.polling import wait_until
from worker.grading import protocol
from worker.grading.client import GradeOutcome

INFRASTRUCTURE_ERROR = GradeOutcome.INFRASTRUCTURE_ERROR


def is_running(pid: int) -> bool:
    """Not gone, and not a zombie that nobody has reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# Crashes and hangs.

CRASHES = {
    "exit": ("os._exit(0)", "exited with code 0"),
    "exit code": ("os._exit(3)", "exited with code 3"),
    "exit like a signal": ("os._exit(170)", "was killed by signal 42"),
    "segfault": ("ctypes.string_at(0)", "was killed by SIGSEGV"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    "closed": ("os.closerange(3, 100)", "the grading process"),
}


@pytest.mark.parametrize(("crash", "form"), [*((crash, "per_sample") for crash in CRASHES), ("segfault", "trl")])
def test_crash_blanks_only_the_rollout_at_fault(grader, crash, form):
    statement, message = CRASHES[crash]
    one = grader(on("bad", statement, form))
    grades = one.grade([rollout("a"), rollout("bad"), rollout("ccc")])
    assert values(grades) == [1.0, None, 3.0], grades
    assert grades[1].outcome is INFRASTRUCTURE_ERROR
    assert message in grades[1].message
    assert values(one.grade([rollout("next")])) == [4.0]


def test_segfault_shows_where_python_was(grader):
    (grade,) = grader(on("bad", "ctypes.string_at(0)")).grade([rollout("bad")])
    assert re.search(r'File "reward.py", line \d+ in reward', grade.traceback)


def test_batch_is_tried_again_as_a_whole_after_a_crash(grader, write):
    one = grader("import os\ndef f(completions): os._exit(1)")
    write("def f(completions): return [len(completions) for _ in completions]")
    assert values(one.grade([rollout(), rollout()])) == [2.0, 2.0]
    assert one.restarts == 1


def test_alarm_of_the_reward_itself_is_its_own_error(grader):
    one = grader(on("bad", "signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)"))
    grades = one.grade([rollout("bad"), rollout("a")])
    assert [grade.outcome for grade in grades] == [GradeOutcome.USER_ERROR, GradeOutcome.SCORED]
    assert "an alarm that the reward has set itself" in grades[0].message


@pytest.mark.parametrize(
    ("loop", "form"),
    [("while True: pass", "trl"), ("time.sleep(3600)", "per_sample"), ("sum(range(10**15))", "per_sample")],
)
def test_endless_loop_ends_at_the_deadline(grader, loop, form):
    one = grader(on("bad", loop, form), batch_deadline_s=1.0, item_deadline_s=0.5)
    grades = one.grade([rollout("bad"), rollout("a")])
    assert values(grades) == [None, 1.0], grades
    assert grades[0].outcome is INFRASTRUCTURE_ERROR
    assert "gave no answer within" in grades[0].message
    assert grades[0].timed_out
    assert values(one.grade([rollout("next")])) == [4.0]


def test_hopeless_batch_is_given_up_in_bounded_time(grader):
    one = grader(on("bad", "sum(range(10**15))"), batch_deadline_s=0.5, item_deadline_s=0.3)
    grades = one.grade([rollout("bad")] * 50)
    assert {(grade.outcome, grade.timed_out) for grade in grades} == {(INFRASTRUCTURE_ERROR, True)}
    assert grades[-1].message.startswith("not tried")


@pytest.mark.parametrize("form", ["per_sample", "trl"])
def test_slow_reward_within_its_deadline_is_graded_however_large_the_batch(grader, form):
    one = grader(on("", "time.sleep(0.1)", form), batch_deadline_s=1.0, item_deadline_s=0.5)
    assert values(one.grade([rollout("a")] * 14)) == [1.0] * 14
    assert one.restarts == 0


def test_close_ends_what_the_reward_started(grader):
    one = grader(on("fork", "os.fork() or time.sleep(3600)"))
    assert values(one.grade([rollout("fork")])) == [4.0]
    started = psutil.Process(one.pid).children(recursive=True)
    assert started
    one.close()
    wait_until(lambda: not any(is_running(child.pid) for child in started), what="their end")


def test_close_ends_the_process(grader):
    one = grader("def reward(completion): return 1.0")
    pid = one.pid
    assert is_running(pid)
    one.close()
    assert not is_running(pid)


def test_killed_client_takes_the_process_down(write):
    path = write("import time\ndef reward(completion): time.sleep(3600)\n")
    script = f"""
from pathlib import Path
from worker.grading.client import Grader, Rollout
with Grader(Path({str(path)!r}), item_deadline_s=3600) as grader:
    print(grader.pid, flush=True)
    grader.grade([Rollout("", "", [], {{}})])
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as client:
        pid = int(client.stdout.readline())
        assert is_running(pid)
        client.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(pid), what="its end")


# Saying what it must not.


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello, world", "is over the cap"),
        (b"\xff\xff\xff\xff", "is over the cap"),
        (protocol.HEADER.pack(5) + b"[1,2]", "a frame holds list"),
        (protocol.HEADER.pack(2) + b"{]", "not a frame of JSON"),
        (protocol.encode({"id": "0" * 32, "grades": [{"outcome": "scored", "value": 1}]}), "answered another request"),
    ],
    ids=["garbage", "four gigabytes", "list", "not JSON", "forged answer"],
)
def test_forged_frame_is_refused_and_the_next_grading_works(grader, data, message):
    one = grader(on("bad", f"everywhere({data!r}); time.sleep(60)"))
    grades = one.grade([rollout("bad"), rollout("a")])
    assert values(grades) == [None, 1.0], grades
    assert grades[0].outcome is INFRASTRUCTURE_ERROR
    assert message in grades[0].message
    assert values(one.grade([rollout("next")])) == [4.0]


def test_answer_before_the_question_is_refused(grader):
    forged = protocol.encode({"id": "0" * 32, "grades": [{"outcome": "scored", "value": 99}]})
    one = grader(f"""
import gc, os, socket, sys, threading, time
def speak_when_idle():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code.co_name not in {{"read_frame", "readinto"}}:
        time.sleep(0.01)
    [each.send({forged!r}) for each in gc.get_objects() if isinstance(each, socket.socket)]
def reward(completion):
    if completion == "bad":
        threading.Thread(target=speak_when_idle, daemon=True).start()
    return len(completion)
""")
    one.grade([rollout("bad")])
    wait_until(lambda: select.select([one._process._socket], [], [], 0)[0], what="the forged answer")
    assert values(one.grade([rollout("next")])) == [4.0]
    assert one.restarts == 1


def test_batch_over_the_frame_cap_is_sent_one_by_one(grader, monkeypatch):
    one = grader("def reward(completion): return len(completion)")
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 1500)
    grades = one.grade([rollout("a" * 1000), rollout("b" * 1000), rollout("c" * 2000)])
    assert values(grades) == [1000.0, 1000.0, None]
    assert "over the cap" in grades[2].message
    assert one.restarts == 0


@pytest.mark.parametrize("statement", ["sum(range(10**15))", "os._exit(3)"])
def test_what_there_is_no_time_for_is_not_tried_and_restarts_count(grader, statement):
    one = grader(on("bad", statement), batch_deadline_s=60.0, item_deadline_s=60.0)
    until = time.monotonic() + 2.0
    grades = one.grade([rollout("bad")] * 200, until=until)
    assert {grade.outcome for grade in grades} == {GradeOutcome.INFRASTRUCTURE_ERROR}
    assert grades[-1].message.startswith("not tried")
    assert one.grade([rollout("a")], until=until)[0].message.startswith("not tried")
    assert values(one.grade([rollout("a")])) == [1.0]
