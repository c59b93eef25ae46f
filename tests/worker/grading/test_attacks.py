"""Every attack of `attacks/`, by root's workers and by rootless ones: refused, or the end of its own grading only.

After each of them the same grader grades on, within its deadline; and all the while another sandbox, of another tenant,
keeps its file in its own /tmp, and gets no other.
"""

import ast
import re
from pathlib import Path

import pytest

THEMES = Path(__file__).with_name("attacks")
HELD = ("scored", None)
"""Refused by the sandbox: the attack itself says so, by scoring 1."""
OUT_OF_TIME = ("infrastructure_error", r"no answer within")
TOO_MUCH = ("infrastructure_error", "held more than 384 MiB")
BROKEN_BY = "infrastructure_error"
USER_ERROR = "user_error"

ENDINGS = {
    # endings
    "endless_loop": OUT_OF_TIME,
    "sleep": OUT_OF_TIME,
    "loop_in_c": OUT_OF_TIME,
    "catastrophic_regular_expression": OUT_OF_TIME,
    "loop_that_catches_everything": OUT_OF_TIME,
    "loop_deaf_to_signals": OUT_OF_TIME,
    "stop_oneself": OUT_OF_TIME,
    "join_a_thread_that_never_ends": OUT_OF_TIME,
    "sys_exit": (USER_ERROR, "SystemExit"),
    "os_exit": (BROKEN_BY, "exited with code 0"),
    "raised_exit_code": (BROKEN_BY, "exited with code 7"),
    "exit_code_that_looks_like_a_signal": (BROKEN_BY, "killed by signal 42"),
    "segmentation_fault": (BROKEN_BY, "killed by SIGSEGV"),
    "abort": (BROKEN_BY, "killed by SIGABRT"),
    "kill_oneself": (BROKEN_BY, "killed by SIGKILL"),
    "kill_own_group": (BROKEN_BY, "killed by SIGKILL"),
    "deep_recursion": (USER_ERROR, "RecursionError"),
    "deep_recursion_without_limit": (BROKEN_BY, "killed by SIGSEGV"),
    "leave_a_child_to_answer": (BROKEN_BY, "exited with code 0"),
    # memory
    "one_huge_object": (USER_ERROR, "MemoryError"),
    "growing_list": (USER_ERROR, "MemoryError"),
    "decompression_bomb": (USER_ERROR, "MemoryError"),
    "memory_in_many_processes": TOO_MUCH,
    "shared_memory_in_many_processes": TOO_MUCH,
    "fork_bomb": OUT_OF_TIME,
    "endless_empty_files": (BROKEN_BY, "made more than 10,000 files"),
    "endless_output": OUT_OF_TIME,
    "huge_exception_text": (USER_ERROR, "ValueError: xxx"),
    # saying
    "garbage_frame": (BROKEN_BY, "over the cap"),
    "frame_of_four_gigabytes": (BROKEN_BY, "over the cap"),
    "frame_that_nests_deeply": (BROKEN_BY, "not a frame of JSON"),
    "frame_that_is_no_object": (BROKEN_BY, "a frame holds list"),
    "forged_answer": (BROKEN_BY, "answered another request"),
    "half_an_answer": OUT_OF_TIME,
    "close_everything": (BROKEN_BY, "exited with code|killed by"),
    "replace_everything": (BROKEN_BY, "exited with code|killed by"),
    "flood_of_descriptors": (BROKEN_BY, "over the cap"),
    "number_beyond_all_rewards": (USER_ERROR, "value: Input should be less than"),
    "time_that_runs_backwards": (USER_ERROR, "latency_s: Input should be greater than"),
    "text_for_a_number": (USER_ERROR, "metrics: Input should be a valid number"),
    "patched_encoder": (BROKEN_BY, "over the cap"),
    "mutated_columns": (BROKEN_BY, "exited with code 1"),
    "not_a_number": (USER_ERROR, "NaN"),
    "infinity": (USER_ERROR, "at most"),
    "number_beyond_floats": (USER_ERROR, "at most"),
    "text": (USER_ERROR, "str"),
    "nested_list": (USER_ERROR, "list"),
    "generator": (USER_ERROR, "generator"),
    "pickled_surprise": (USER_ERROR, "Surprise"),
    "number_with_methods_of_its_own": (BROKEN_BY, "exited with code 9"),
    "lone_surrogates_and_nul": (USER_ERROR, r"ValueError"),
    "exception_without_a_text": (USER_ERROR, "Silent"),
    "json_that_nests_deeply": (USER_ERROR, "RecursionError"),
    # kernel
    "calls_of_i386": (BROKEN_BY, "killed by SIGSYS"),
}
"""How the grading of an attack ends, where it is not held."""


def attacks() -> list[tuple[str, str]]:
    """File and function: all but `reward`, and what the attacks share."""
    return [
        (path.stem, node.name)
        for path in sorted(THEMES.glob("*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name != "reward" and not node.name.startswith("_")
    ]


@pytest.mark.parametrize(("theme", "name"), attacks(), ids=lambda part: part)
def test_attack_ends_its_own_grading_at_most(victims, theme, name):
    outcome, message = ENDINGS.get(name, HELD)
    answer = victims.ask("attack", theme=theme, name=name, hurried=(outcome, message) == OUT_OF_TIME)
    fine, attacked = answer["grades"]
    assert attacked["outcome"] == outcome, attacked
    assert attacked["value"] == 1.0 if message is None else re.search(message, attacked["message"]), attacked
    assert fine["value"] == answer["after"]["value"] == 1.0, (fine, answer["after"])
    assert answer["tenant"] == [1.0, 1.0], "the other sandbox stands as it stood"
    assert answer["output_bytes"] <= 64 * 1024


def test_there_are_enough_attacks_and_every_ending_is_of_one():
    names = [name for _, name in attacks()]
    assert len(names) == len(set(names)) >= 60
    assert set(ENDINGS) <= set(names)


@pytest.mark.parametrize("statement", ["while True: pass", "import time; time.sleep(3600)"])
def test_import_that_does_not_end_is_ended(victims, statement):
    answer = victims.ask("load", source=f"def reward(completion): return 1.0\n{statement}\n", load_deadline_s=1.0)
    assert answer["code"] == "grader_failed", answer
    assert "no answer within 1 s" in answer["message"]


@pytest.mark.parametrize(
    ("statement", "code", "message"),
    [
        ("import os; os._exit(0)", "grader_failed", "exited with code 0"),
        ("import ctypes; ctypes.string_at(0)", "grader_failed", "killed by SIGSEGV"),
        ("raise SystemExit", "invalid_reward", "SystemExit"),
        ("x = bytearray(8 * 1024**3)", "invalid_reward", "MemoryError"),
        ("open('/etc/passwd')", "invalid_reward", "FileNotFoundError"),
        ("import socket; socket.create_connection(('127.0.0.1', 5432))", "invalid_reward", "PermissionError"),
    ],
)
def test_harm_at_import_ends_the_loading(victims, statement, code, message):
    answer = victims.ask("load", source=f"def reward(completion): return 1.0\n{statement}\n")
    assert answer["code"] == code, answer
    assert message in answer["message"]
    fine = victims.ask("load", source="def reward(completion): return 1.0")
    assert fine["grade"]["value"] == 1.0


def test_nothing_is_left_of_all_attacks(victims):
    """No process that went on, no zombie that nobody buried, no file on the host."""
    left = victims.ask("close")["pids"]
    assert len(left) == 1, [Path(f"/proc/{pid}/stat").read_text() for pid in left]
    assert not Path("/tmp/surprise").exists()
