"""Real grading processes, and what reward code can do to them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from core.errors import InvalidReward
from worker.grading import protocol
from worker.grading.client import Grade, GradeOutcome, Grader, GraderFailed, Rollout
from worker.grading.process import LOG_BYTES

INFRASTRUCTURE_ERROR = GradeOutcome.INFRASTRUCTURE_ERROR


@pytest.fixture
def write(tmp_path):
    def _write(source: str) -> Path:
        path = tmp_path / "source.py"
        path.write_text(source)
        return path

    return _write


@pytest.fixture
def grader(write):
    graders = []

    def _grader(source: str, **options) -> Grader:
        one = Grader(write(source), **options)
        graders.append(one)
        return one.__enter__()

    yield _grader
    for one in graders:
        one.close()


def rollout(completion: str = "2", prompt="1+1?", **columns) -> Rollout:
    return Rollout(prompt, completion, [1, 2], columns)


def values(grades: list[Grade]) -> list[float | None]:
    return [grade.value for grade in grades]


def on(word: str, statement: str, form: str = "per_sample") -> str:
    """A reward that runs `statement` for completions that hold `word`, and scores the length of the others."""
    if form == "trl":
        return f"""
import ctypes, os, signal, sys, time
def f(completions):
    for completion in completions:
        if {word!r} in completion:
            {statement}
    return [len(completion) for completion in completions]
"""
    return f"""
import ctypes, os, signal, sys, time
def reward(completion):
    if {word!r} in completion:
        {statement}
    return len(completion)
"""


def is_running(pid: int) -> bool:
    """Not gone, and not a zombie that nobody has reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, timeout_s: float = 20.0) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


# Grading.


def test_rewards_are_graded_in_order_with_their_columns(grader):
    one = grader("def reward(completion, answer): return completion == answer")
    assert values(one.grade([rollout("2", answer="2"), rollout("3", answer="2")])) == [1.0, 0.0]
    assert one.entry.columns == ("answer",)
    assert one.grade([]) == []


def test_trl_form_gets_chat_and_step_through_the_process(grader):
    one = grader("""
def f(prompts, completions, completion_ids, trainer_state, log_metric):
    log_metric("step", trainer_state.global_step)
    return [float(p[0]["role"] == "user" and c[0]["content"] == "2" and i == [1, 2])
            for p, c, i in zip(prompts, completions, completion_ids)]
""")
    grades = one.grade([rollout(prompt=[{"role": "user", "content": "1+1?"}])] * 2, step=7)
    assert [(grade.value, grade.metrics) for grade in grades] == [(1.0, {"step": 7.0})] * 2


@pytest.mark.parametrize("library", ["numpy", "scipy", "sympy", "regex", "mpmath"])
def test_declared_libraries_can_be_imported(grader, library):
    one = grader(f"import {library} as x\ndef reward(completion): return float(bool(x.__name__))")
    assert values(one.grade([rollout()])) == [1.0]


def test_module_state_lasts_between_batches(grader):
    one = grader("calls = []\ndef reward(completion):\n    calls.append(1)\n    return len(calls)")
    assert values(one.grade([rollout()] * 2) + one.grade([rollout()])) == [1.0, 2.0, 3.0]


def test_exception_none_and_nan_cost_only_their_own_rollout(grader):
    source = "def reward(completion): return {'n': None, 'x': float('nan')}.get(completion) or float(completion)"
    one = grader(source.replace("or", "if completion in 'nx' else"))
    grades = one.grade([rollout("1"), rollout("n"), rollout("x"), rollout("bad"), rollout("5")])
    outcomes = [grade.outcome.value for grade in grades]
    assert outcomes == ["scored", "no_answer", "user_error", "user_error", "scored"]
    assert 'File "reward.py", line 1, in reward' in grades[3].traceback
    assert one.restarts == 0


def test_wrong_count_is_a_user_error_naming_the_index(grader):
    grades = grader("def f(completions): return [1.0]").grade([rollout()] * 3)
    assert [grade.outcome for grade in grades] == [GradeOutcome.USER_ERROR] * 3
    assert "none for index 1" in grades[0].message


def test_text_survives_the_trip(grader):
    one = grader("def reward(completion): return [ord(c) for c in completion] == [0, 0xd800, 0x1f600]")
    assert values(one.grade([rollout("\0\ud800😀")])) == [1.0]


def test_inputs_stay_as_they_were(grader):
    one = grader("""
def f(prompts, completions, meta):
    prompts[0].clear(), completions[0].clear(), meta[0].clear()
    return [1.0 for _ in completions]
""")
    given = rollout(prompt=[{"role": "user", "content": "1+1?"}], meta={"a": [1]})
    assert values(one.grade([given]) + one.grade([given])) == [1.0, 1.0]
    assert (given.prompt, given.columns) == ([{"role": "user", "content": "1+1?"}], {"meta": {"a": [1]}})


# What the process sees.


def test_environment_is_empty(grader, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    one = grader("""
import os
from pathlib import Path
def reward(completion):
    assert dict(os.environ) == {}, dict(os.environ)
    assert Path("/proc/self/environ").read_bytes() == b""
    return 1.0
""")
    (grade,) = one.grade([rollout()])
    assert grade.value == 1.0, grade


def test_no_descriptor_of_the_client_is_inherited(grader, tmp_path):
    secret = os.open(tmp_path / "secret", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(secret, True)
    one = grader("""
import os
def reward(completion):
    return sum("secret" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
               if os.path.exists(f"/proc/self/fd/{fd}"))
""")
    try:
        assert values(one.grade([rollout()])) == [0.0]
    finally:
        os.close(secret)


def test_working_folder_is_private_and_goes_with_the_grader(grader):
    one = grader("""
import os
def reward(completion):
    open("note", "w").close()
    raise ValueError(os.getcwd())
""")
    folder = Path(one.grade([rollout()])[0].message.removeprefix("ValueError: "))
    assert (folder / "note").exists()
    one.close()
    assert not folder.exists()


# Output.


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_huge_output_is_graded_normally_and_kept_at_its_end(grader, stream):
    one = grader(on("loud", f"sys.{stream}.write('x' * 20_000_000 + 'the end\\n')"))
    assert values(one.grade([rollout("loud")])) == [4.0]
    assert values(one.grade([rollout("ok")])) == [2.0]
    assert one.output.text().endswith("the end\n")
    assert len(one.output.text()) == LOG_BYTES
    assert one.output.dropped_bytes >= 19_900_000


def test_writing_to_the_standard_descriptors_does_not_disturb_the_protocol(grader):
    one = grader(on("raw", "os.write(1, b'\\0\\0\\0\\5hello' * 100); os.write(2, b'\\xff' * 1000)"))
    assert values(one.grade([rollout("raw")])) == [3.0]
    assert one.restarts == 0


# Crashes and hangs.

CRASHES = {
    "exit": ("os._exit(0)", "exited with code 0"),
    "exit code": ("os._exit(3)", "exited with code 3"),
    "segfault": ("ctypes.string_at(0)", "was killed by SIGSEGV"),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
    "alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(60)", "was killed by SIGALRM"),
    "closed": ("os.closerange(3, 100)", "was killed by SIGKILL"),
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
    assert 'File "reward.py", line 5 in reward' in grade.traceback


def test_batch_is_tried_again_as_a_whole_after_a_crash(grader):
    one = grader("""
import os
def f(completions):
    if not os.path.exists("tried"):
        open("tried", "w").close()
        os._exit(1)
    return [len(completions) for _ in completions]
""")
    assert values(one.grade([rollout(), rollout()])) == [2.0, 2.0]
    assert one.restarts == 1


@pytest.mark.parametrize(
    ("loop", "form"),
    [("while True: pass", "trl"), ("time.sleep(3600)", "per_sample"), ("sum(range(10**15))", "per_sample")],
)
def test_endless_loop_ends_at_the_deadline(grader, loop, form):
    one = grader(on("bad", loop, form), batch_deadline_s=1.0, item_deadline_s=0.5)
    grades = one.grade([rollout("bad"), rollout("a")])
    assert values(grades) == [None, 1.0], grades
    assert grades[0].outcome is INFRASTRUCTURE_ERROR
    assert "no answer within 0.5 s" in grades[0].message
    assert values(one.grade([rollout("next")])) == [4.0]


def test_hopeless_batch_is_given_up_in_bounded_time(grader):
    one = grader(on("bad", "time.sleep(3600)"), batch_deadline_s=0.5, item_deadline_s=0.3)
    grades = one.grade([rollout("bad")] * 50)
    assert {grade.outcome for grade in grades} == {INFRASTRUCTURE_ERROR}
    assert grades[-1].message.startswith("not tried")


def test_timeout_kills_what_the_reward_started(grader, tmp_path):
    note = tmp_path / "pid"
    start = "p = __import__('subprocess').Popen(['sleep', '3600'])"
    statement = f"{start}; open({str(note)!r}, 'w').write(str(p.pid)); p.wait()"
    one = grader(on("bad", statement), batch_deadline_s=1.0)
    one.grade([rollout("bad")])
    pid = int(note.read_text())
    wait_until(lambda: not is_running(pid))


def test_close_ends_the_process(grader):
    one = grader("def reward(completion): return 1.0")
    pid = one.pid
    assert is_running(pid)
    one.close()
    assert not is_running(pid)


def test_killed_client_takes_the_process_down(write, tmp_path):
    started = tmp_path / "started"
    path = write(f"import time\ndef reward(completion):\n    open({str(started)!r}, 'w').close(); time.sleep(3600)\n")
    script = f"""
from pathlib import Path
from worker.grading.client import Grader, Rollout
with Grader(Path({str(path)!r})) as grader:
    print(grader.pid, flush=True)
    grader.grade([Rollout("", "", [], {{}})])
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as client:
        pid = int(client.stdout.readline())
        wait_until(started.exists)
        assert is_running(pid)
        client.send_signal(signal.SIGKILL)
    wait_until(lambda: not is_running(pid))


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
    every_descriptor = "[fd for fd in range(3, 1024) if os.path.exists(f'/proc/self/fd/{fd}')]"
    one = grader(on("bad", f"[os.write(fd, {data!r}) for fd in {every_descriptor}]; time.sleep(60)"))
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
    open("spoken", "w").close()
def reward(completion):
    if completion == "bad":
        threading.Thread(target=speak_when_idle, daemon=True).start()
        raise ValueError(os.getcwd())
    return len(completion)
""")
    folder = one.grade([rollout("bad")])[0].message.removeprefix("ValueError: ")
    wait_until(Path(folder, "spoken").exists)
    assert values(one.grade([rollout("next")])) == [4.0]
    assert one.restarts == 1


def test_batch_over_the_frame_cap_is_sent_one_by_one(grader, monkeypatch):
    one = grader("def reward(completion): return len(completion)")
    monkeypatch.setattr(protocol, "MAX_FRAME_BYTES", 1500)
    grades = one.grade([rollout("a" * 1000), rollout("b" * 1000), rollout("c" * 2000)])
    assert values(grades) == [1000.0, 1000.0, None]
    assert "over the cap" in grades[2].message
    assert one.restarts == 0


# Loading.


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("raise ValueError('no data')\ndef reward(completion): ...", "ValueError: no data"),
        ("raise SystemExit\ndef reward(completion): ...", "SystemExit"),
        ("def reward(completion): ...\nreward = 3", "`reward` is int, not a function"),
        ("def reward(completion): ...\ndel reward", "`reward` is NoneType, not a function"),
        ("def reward(completion):", "line 1, column"),
        ("import torch\ndef reward(completion): ...", "`torch` is not there"),
    ],
)
def test_source_that_cannot_be_loaded_is_refused_with_its_error(grader, source, message):
    with pytest.raises(InvalidReward) as caught:
        grader(source)
    assert message in caught.value.message
    assert caught.value.fix


def test_load_error_shows_the_line(grader):
    with pytest.raises(InvalidReward, match=r'File "reward.py", line 2, in <module>\n    1 / 0'):
        grader("x = 1\n1 / 0\ndef reward(completion): ...")


@pytest.mark.parametrize(
    ("statement", "message"),
    [("while True: pass", "no answer within 0.5 s"), ("import os; os._exit(4)", "exited with code 4")],
)
def test_load_that_hangs_or_crashes_is_a_grader_failure(grader, statement, message):
    with pytest.raises(GraderFailed, match=message):
        grader(f"def reward(completion): ...\n{statement}", load_deadline_s=0.5)


def test_reward_that_cannot_be_loaded_again_is_an_infrastructure_error(grader, tmp_path):
    marker = tmp_path / "marker"
    one = grader(f"""
import os
if os.path.exists({str(marker)!r}):
    raise RuntimeError("once is enough")
def reward(completion):
    open({str(marker)!r}, "w").close()
    os._exit(1)
""")
    grades = one.grade([rollout(), rollout()])
    assert [grade.outcome for grade in grades] == [INFRASTRUCTURE_ERROR] * 2
    assert "once is enough" in grades[0].message


def test_named_entry_point_is_called(grader):
    one = grader("def reward(completion): return 1.0\ndef other(completion): return 2.0", entry_point="other")
    assert values(one.grade([rollout()])) == [2.0]
