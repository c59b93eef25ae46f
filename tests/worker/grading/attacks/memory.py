"""Rewards that hold or fill more than they may: memory, processes, /tmp, output."""

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import sys
import tempfile
import threading
import time
import zlib

LIBC = ctypes.CDLL(None, use_errno=True)
MIB = 1024**2


def reward(completion, facts):
    return 1.0 if completion == "fine" else globals()[completion]()


def one_huge_object():
    return len(bytearray(8 * 1024**3))


def growing_list():
    held = []
    while True:
        held.append(bytearray(16 * MIB))


def decompression_bomb():
    packer = zlib.compressobj(1)
    packed = b"".join(packer.compress(bytes(16 * MIB)) for _ in range(30)) + packer.flush()
    return len(zlib.decompress(packed))


def memory_in_many_processes():
    for _ in range(10):
        if os.fork() == 0:
            held = bytearray(b"x" * (60 * MIB))
            time.sleep(3600 + len(held))
    time.sleep(3600)


def shared_memory_in_many_processes():
    for _ in range(10):
        if os.fork() == 0:
            shared = mmap.mmap(-1, 60 * MIB)
            shared.write(b"x" * (60 * MIB))
            time.sleep(3600)
    time.sleep(3600)


def fork_bomb():
    while True:
        try:
            os.fork()
        except OSError:
            pass


def forks_are_counted():
    born = []
    try:
        for _ in range(1000):
            pid = os.fork()
            if pid == 0:
                time.sleep(3600)
            born.append(pid)
    except BlockingIOError:
        pass
    finally:
        for pid in born:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return len(born) < 64


def threads_are_counted():
    end = threading.Event()
    threads = []
    try:
        for _ in range(1000):
            thread = threading.Thread(target=end.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError:
        pass
    finally:
        end.set()
        for thread in threads:
            thread.join()
    return len(threads) < 64


def memory_without_a_mapping():
    try:
        os.memfd_create("hidden")
    except PermissionError:
        return 1.0


def system_v_shared_memory():
    return LIBC.shmget(0, 64 * MIB, 0o1600) == -1 and ctypes.get_errno() == errno.EPERM


def posix_message_queue():
    return LIBC.mq_open(b"/queue", os.O_CREAT | os.O_RDWR, 0o600, None) == -1


def locked_memory():
    return LIBC.mlockall(3) == -1


def endless_file_locks():
    with tempfile.TemporaryFile() as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        except PermissionError:
            return 1.0


def fill_the_disk():
    written = 0
    files = [open(f"/tmp/fill{number}", "wb", buffering=0) for number in range(8)]
    try:
        for file in files:
            try:
                while True:
                    written += file.write(bytes(MIB))
            except OSError:
                continue
    finally:
        for file in files:
            file.close()
            os.remove(file.name)
    return 8 * MIB <= written <= 16 * MIB


def endless_empty_files():
    for number in range(10**7):
        os.mkdir(f"/tmp/{number}")


def open_files_are_counted():
    held = []
    try:
        for _ in range(1000):
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    finally:
        for descriptor in held:
            os.close(descriptor)
    return len(held) < 64


def huge_output():
    for _ in range(48):
        sys.stdout.write("x" * MIB)
        sys.stderr.write("y" * MIB)
    return 1.0


def endless_output():
    while True:
        print("x" * 1000)


def huge_exception_text():
    raise ValueError("x" * (64 * MIB))


def core_dump():
    return resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
