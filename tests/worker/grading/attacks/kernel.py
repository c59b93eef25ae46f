"""Rewards that reach for the kernel or for other processes. An attack returns 1 when it was refused."""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import resource
import signal
import socket
import subprocess
import time

LIBC = ctypes.CDLL(None, use_errno=True)
CALLS = {
    "x86_64": {
        "clone": 56, "ptrace": 101, "process_vm_readv": 310, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "add_key": 248, "keyctl": 250, "setns": 308, "pivot_root": 155, "chroot": 161, "personality": 135, "kcmp": 312,
        "name_to_handle_at": 303, "open_by_handle_at": 304, "init_module": 175, "kexec_load": 246, "capset": 126,
        "seccomp": 317, "inotify_init1": 294, "fanotify_init": 300, "mq_open": 240, "semget": 64, "unshare": 272,
    },
    "aarch64": {
        "clone": 220, "ptrace": 117, "process_vm_readv": 270, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "add_key": 217, "keyctl": 219, "setns": 268, "pivot_root": 41, "chroot": 51, "personality": 92, "kcmp": 272,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "init_module": 105, "kexec_load": 104, "capset": 91,
        "seccomp": 277, "inotify_init1": 26, "fanotify_init": 262, "mq_open": 180, "semget": 190, "unshare": 97,
    },
}[platform.machine()]  # fmt: skip
NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x8000000}


def reward(completion, facts):
    return 1.0 if completion == "fine" else globals()[completion](facts)


def _call(number, *arguments):
    """The result, or minus the error."""
    result = LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(argument) for argument in arguments))
    return result if result >= 0 else -ctypes.get_errno()


def _refusal(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return error.errno
    return 0


def _is_refused(function, *arguments):
    try:
        function(*arguments)
    except OSError:
        return True
    return False


def kill_the_client(facts):
    return _is_refused(os.kill, facts["client_pid"], signal.SIGKILL)


def pairs_of_other_sockets(facts):
    """AF_TIPC and AF_VSOCK: whole protocols of the kernel, that AF_UNIX is not."""
    socket.socketpair(socket.AF_UNIX)
    return all(_refusal(socket.socketpair, family) == errno.EPERM for family in (socket.AF_TIPC, socket.AF_VSOCK))


def kill_the_parent(facts):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV):
        _is_refused(os.kill, os.getppid(), number)
    time.sleep(0.05)
    return os.getppid() == 1


def kill_everybody(facts):
    _is_refused(os.kill, -1, signal.SIGKILL)
    return 1.0


def open_a_process(facts):
    return _is_refused(os.pidfd_open, facts["client_pid"])


def survive_in_another_session(facts):
    """Twice removed from its parent, it would go on after everything here has ended: a test looks."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    os.wait()
    return 1.0


def orphans_are_reaped(facts):
    """More than may live at once: each leaves a dead child behind, for init to bury."""
    for _ in range(150):
        pid = os.fork()
        if pid == 0:
            os.fork()
            os._exit(0)
        os.waitpid(pid, 0)
    return 1.0


def ptrace(facts):
    return _call(CALLS["ptrace"], 16, os.getppid(), 0, 0) == -errno.EPERM


def read_memory_of_the_parent(facts):
    return _call(CALLS["process_vm_readv"], os.getppid(), 0, 0, 0, 0, 0) == -errno.EPERM


def compare_processes(facts):
    return _call(CALLS["kcmp"], 1, 2, 0, 0, 0) == -errno.EPERM


def nested_namespaces(facts):
    return all(_call(CALLS["unshare"], flag) == -errno.EPERM for flag in NAMESPACES.values())


def nested_namespaces_by_clone(facts):
    return all(_call(CALLS["clone"], flag | signal.SIGCHLD, 0, 0, 0, 0) == -errno.EPERM for flag in NAMESPACES.values())


def nested_namespaces_by_clone3(facts):
    arguments = ctypes.create_string_buffer(88)
    ctypes.c_uint64.from_buffer(arguments).value = NAMESPACES["user"]
    return _call(435, ctypes.addressof(arguments), 88) == -errno.ENOSYS


def somebody_elses_namespace(facts):
    return _call(CALLS["setns"], 0, 0) == -errno.EPERM


def mounts(facts):
    calls = [
        LIBC.mount(b"none", b"/tmp", b"tmpfs", 0, None),
        LIBC.mount(None, b"/", None, 32, None),  # MS_REMOUNT: writable again
        LIBC.umount2(b"/tmp", 2),
        _call(428, -100, 0, 1),  # open_tree
        _call(430, 0, 0),  # fsopen
        _call(429, 0, 0, 0, 0, 0),  # move_mount
        _call(442, 0, 0, 0, 0, 0),  # mount_setattr
    ]
    return all(result < 0 for result in calls)


def another_root(facts):
    return _is_refused(os.chroot, "/tmp") and _call(CALLS["pivot_root"], 0, 0) == -errno.EPERM


def io_uring(facts):
    return [_call(number, 1, 0, 0, 0) for number in (425, 426, 427)] == [-errno.EPERM] * 3


def doors_of_the_kernel(facts):
    names = ("bpf", "perf_event_open", "userfaultfd", "add_key", "keyctl", "init_module", "kexec_load", "seccomp")
    return all(_call(CALLS[name], 0, 0, 0, 0, 0) == -errno.EPERM for name in names)


def files_by_handle(facts):
    names = ("name_to_handle_at", "open_by_handle_at")
    return all(_call(CALLS[name], 0, 0, 0, 0, 0) == -errno.EPERM for name in names)


def watchers_and_queues(facts):
    names = ("inotify_init1", "fanotify_init", "mq_open", "semget", "personality")
    return all(_call(CALLS[name], 0, 0, 0, 0, 0) == -errno.EPERM for name in names)


def calls_of_the_future(facts):
    return {_call(number, 0, 0, 0, 0, 0) for number in (450, 451, 463, 500, 1000)} == {-errno.ENOSYS}


def calls_of_x32(facts):
    return platform.machine() != "x86_64" or _call(0x40000000 | 39) == -errno.ENOSYS


def calls_of_i386(facts):
    """mov eax, 20 (getpid); int 0x80; ret"""
    if platform.machine() != "x86_64":
        os.kill(os.getpid(), signal.SIGSYS)
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()


def become_root(facts):
    calls = [(os.setuid, 0), (os.setgid, 0), (os.setresuid, 0, 0, 0), (os.setreuid, 0, 0), (os.setgroups, [0])]
    return all(_is_refused(*call) for call in calls)


def capabilities(facts):
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    assert LIBC.capget(header, data) == 0
    return not any(data) and _call(CALLS["capset"], 0, 0) == -errno.EPERM


def programs_with_the_setuid_bit(facts):
    return all(_is_refused(subprocess.run, [name, "--version"]) for name in ("su", "sudo", "mount", "/usr/bin/su"))


def own_setuid_program(facts):
    """Made, or found: no file system here heeds the bit, nor would a new program get the rights."""
    with open("/tmp/program", "wb") as file:
        file.write(b"#!/bin/sh\n")
    os.chmod("/tmp/program", 0o6755)
    folders = ("/tmp", "/podium/core", "/libraries/numpy", "/usr/lib")
    heeds = [folder for folder in folders if not os.statvfs(folder).f_flag & os.ST_NOSUID]
    return heeds == [] and LIBC.prctl(39, 0, 0, 0, 0) == 1  # PR_GET_NO_NEW_PRIVS


def raise_limits(facts):
    for name in ("AS", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE", "MEMLOCK", "STACK", "SIGPENDING"):
        limit = getattr(resource, f"RLIMIT_{name}", None) or 11
        _, hard = resource.getrlimit(limit)
        try:
            resource.setrlimit(limit, (hard + 1, hard + 1))
        except (ValueError, OSError):
            continue
        return 0.0
    return 1.0


def higher_priority(facts):
    return _is_refused(os.nice, -10) and _is_refused(os.setpriority, os.PRIO_PROCESS, 0, -10)


def type_into_the_terminal(facts):
    """TIOCSTI; where it is let through, standard input says that it is no terminal."""
    return _refusal(fcntl.ioctl, 0, 0x5412, b"x") == errno.EPERM and _is_refused(os.open, "/dev/tty", os.O_RDWR)


def name_of_the_host(facts):
    return os.uname().nodename == "sandbox" and LIBC.sethostname(b"mine", 4) == -1


def clock(facts):
    return _is_refused(time.clock_settime, time.CLOCK_REALTIME, 0.0)
