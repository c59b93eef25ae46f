"""Rewards that do not end, end the process, or use up time. Each function is one attack; `reward` picks it by name."""

import atexit
import ctypes
import os
import re
import signal
import sys
import threading
import time


def reward(completion, facts):
    return 1.0 if completion == "fine" else globals()[completion]()


def endless_loop():
    while True:
        pass


def sleep():
    time.sleep(3600)


def loop_in_c():
    return sum(range(10**15))


def catastrophic_regular_expression():
    return re.match(r"(a+)+$", "a" * 64 + "b") is None


def loop_that_catches_everything():
    while True:
        try:
            time.sleep(3600)
        except BaseException:
            continue


def loop_deaf_to_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    while True:
        pass


def stop_oneself():
    os.kill(os.getpid(), signal.SIGSTOP)


def join_a_thread_that_never_ends():
    thread = threading.Thread(target=endless_loop)
    thread.start()
    thread.join()


def spinning_thread_left_behind():
    threading.Thread(target=endless_loop, daemon=True).start()
    return 1.0


def stubborn_exit_handler():
    atexit.register(endless_loop)
    return 1.0


def sys_exit():
    sys.exit(0)


def os_exit():
    os._exit(0)


def raised_exit_code():
    os._exit(7)


def exit_code_that_looks_like_a_signal():
    """Of a number that has no name."""
    os._exit(170)


def segmentation_fault():
    ctypes.string_at(0)


def abort():
    os.abort()


def kill_oneself():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_own_group():
    os.killpg(0, signal.SIGKILL)


def deep_recursion():
    return deep_recursion()


def deep_recursion_without_limit(turn=0):
    """By way of C, whose stack ends where Python's count does not."""
    sys.setrecursionlimit(10**9)
    return max(map(deep_recursion_without_limit, [0]))


def leave_a_child_to_answer():
    if os.fork() != 0:
        os._exit(0)
    time.sleep(3600)
