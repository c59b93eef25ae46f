"""Rewards that talk to the client themselves, or answer what is no answer."""

import array
import contextlib
import json
import math
import os
import socket
import struct
import sys
import threading
import time
import types


def reward(completion, facts):
    return 1.0 if completion == "fine" else globals()[completion]()


def _descriptors():
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            yield descriptor


def _write_to_all(data):
    for descriptor in _descriptors():
        with contextlib.suppress(OSError):
            os.write(descriptor, data)
    time.sleep(3600)


def _frame(body):
    return struct.pack(">I", len(body)) + body


def raw_bytes_on_standard_output():
    os.write(1, b"\0\0\0\5hello" * 100)
    os.write(2, b"\xff" * 1000)
    return 1.0


def garbage_frame():
    _write_to_all(b"hello, world, this is no frame")


def frame_of_four_gigabytes():
    _write_to_all(b"\xff\xff\xff\xff" + b"x" * 1000)


def frame_that_nests_deeply():
    _write_to_all(_frame(b"[" * 200_000))


def frame_that_is_no_object():
    _write_to_all(_frame(b"[1, 2]"))


def forged_answer():
    _write_to_all(_frame(json.dumps({"id": "0" * 32, "grades": [{"outcome": "scored", "value": 99}]}).encode()))


def answer_to_what_was_not_asked_yet():
    """Spoken when the main thread waits for the next request."""
    main = threading.main_thread().ident
    forged = _frame(json.dumps({"id": "0" * 32, "grades": [{"outcome": "scored", "value": 99}]}).encode())

    def speak():
        while sys._current_frames()[main].f_code.co_name not in {"read_frame", "readinto"}:
            time.sleep(0.001)
        for descriptor in _descriptors():
            os.write(descriptor, forged)

    threading.Thread(target=speak, daemon=True).start()
    return 1.0


def half_an_answer():
    _write_to_all(struct.pack(">I", 1000) + b"{")


def close_everything():
    os.closerange(0, 64)
    return 1.0


def replace_everything():
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in list(_descriptors()):
        os.dup2(null, descriptor)
    return 1.0


def flood_of_descriptors():
    """Sent to the client as SCM_RIGHTS: it must not take them."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 16))]
    for descriptor in list(_descriptors()):
        with contextlib.suppress(OSError):
            connection = socket.socket(fileno=os.dup(descriptor))
            for _ in range(100):
                connection.sendmsg([b"\xff"], rights)
    time.sleep(3600)


def patched_json():
    """Answers are written by an encoder that was made before the reward came."""
    json.dumps = lambda *given, **more: "garbage"
    return 1.0


def patched_encoder():
    sys.modules["worker.grading.protocol"].encode = lambda message: b"\xff" * 8
    return 1.0


def patched_grades():
    """From the next batch on."""
    sys.modules["worker.grading.signatures"].call = lambda *given, **more: []
    return 1.0


def _answer(**fields):
    """Instead of what the reward returned: the second grade of its batch."""
    child = sys.modules["worker.grading.child"]
    honest = child.as_json

    def forge(grade):
        child.as_json = honest
        return {**honest(grade), **fields}

    def wait(grade):
        child.as_json = forge
        return honest(grade)

    child.as_json = wait
    return 1.0


def number_beyond_all_rewards():
    return _answer(value=1e308)


def time_that_runs_backwards():
    return _answer(latency_s=-1e300)


def text_for_a_number():
    return _answer(metrics={"n": "1"})


def not_a_number():
    return math.nan


def infinity():
    return math.inf


def number_beyond_floats():
    return 10**400


def text():
    return "1.0"


def nested_list():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def generator():
    return (1.0 for _ in range(3))


def pickled_surprise():
    """Unpickled, it would write a file."""

    class Surprise:
        def __reduce__(self):
            return os.system, ("touch /tmp/surprise",)

    return Surprise()


def number_with_methods_of_its_own():
    class Liar(float):
        def __float__(self):
            os._exit(9)

    return Liar(1.0)


def lone_surrogates_and_nul():
    raise ValueError("\ud800 \0 \udfff")


def exception_without_a_text():
    class Silent(Exception):
        def __str__(self):
            raise SystemExit

    raise Silent


def json_that_nests_deeply():
    return json.loads("[" * 200_000)


def module_that_is_not_one():
    sys.modules["json"] = sys.modules["reward"] = types.ModuleType("nothing")
    return 1.0


def mutated_columns():
    """Of all rollouts of the batch, the request and the answers so far: whatever the frames below hold."""
    frame = sys._getframe()
    while frame := frame.f_back:
        for value in list(frame.f_locals.values()):
            if isinstance(value, list | dict) and value is not frame.f_globals:
                value.clear()
    return 1.0
