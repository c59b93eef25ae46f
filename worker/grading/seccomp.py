"""The system calls that reward code may not make, as a classic BPF program for `bwrap --seccomp`.

Written by hand, because it is a table and 40 lines: the Python bindings need libseccomp, which slim images lack, for
architectures and rules that are not used here. The format is seccomp(2) and <linux/filter.h>; the numbers are those of
the kernel's tables, which never change.

What is refused either makes an escape from the sandbox thinkable (namespaces, mounts, io_uring, bpf, ptrace, keys,
sockets: AF_VSOCK and AF_ALG know no namespace), or holds memory that no limit counts (memfd, SysV, message queues,
locks). Calls newer than the table do not exist for reward code, nor do those of other ABIs (i386, x32).
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

NEWEST_CALL = 449
"""futex_waitv (Linux 5.16). From 424 on, the numbers are the same on all architectures."""
REFUSED: dict[str, tuple[int, int]] = {
    # name: (x86_64, aarch64); -1 where the architecture has no such call
    "accept": (43, 202), "accept4": (288, 242), "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171),
    "bind": (49, 200), "bpf": (321, 280), "capset": (126, 91), "chroot": (161, 51), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "connect": (42, 203), "delete_module": (176, 106), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "finit_module": (313, 273), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fsopen": (430, 430), "fspick": (433, 433), "get_mempolicy": (239, 236), "init_module": (175, 105),
    "inotify_add_watch": (254, 27), "inotify_init": (253, -1), "inotify_init1": (294, 26), "io_setup": (206, 0),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioperm": (173, -1),
    "iopl": (172, -1), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "listen": (50, 201), "lookup_dcookie": (212, 18), "mbind": (237, 235),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "mknod": (133, -1),
    "mknodat": (259, 33), "modify_ldt": (154, -1), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "move_pages": (279, 239), "mq_getsetattr": (245, 185), "mq_notify": (244, 184),
    "mq_open": (240, 180), "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182), "mq_unlink": (241, 181),
    "msgctl": (71, 187), "msgget": (68, 186), "msgrcv": (70, 188), "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pivot_root": (155, 41),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "remap_file_pages": (216, 234), "request_key": (249, 218), "seccomp": (317, 277),
    "semctl": (66, 191), "semget": (64, 190), "semop": (65, 193), "semtimedop": (220, 192),
    "set_mempolicy": (238, 237), "setdomainname": (171, 162), "setfsgid": (123, 152), "setfsuid": (122, 151),
    "setgid": (106, 144), "setgroups": (116, 159), "sethostname": (170, 161), "setns": (308, 268),
    "setregid": (114, 143), "setresgid": (119, 149), "setresuid": (117, 147), "setreuid": (113, 145),
    "settimeofday": (164, 170), "setuid": (105, 146), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197),
    "shmget": (29, 194), "socket": (41, 198), "swapoff": (168, 225), "swapon": (167, 224), "sysfs": (139, -1),
    "syslog": (103, 116), "umount2": (166, 39), "unshare": (272, 97), "uselib": (134, -1), "userfaultfd": (323, 282),
    "ustat": (136, -1), "vhangup": (153, 58), "vmsplice": (278, 75),
}  # fmt: skip

_CLONE3 = 435
"""Its flags lie in memory that a filter cannot read; without it libraries fall back to clone."""
_CLONE_NAMESPACES = 0x7E020080
"""CLONE_NEW{TIME,NS,CGROUP,UTS,IPC,USER,PID,NET}."""
_LOCKS = (6, 7, 37, 38)
"""F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW: every lock of a byte is memory of the kernel's."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into somebody's terminal."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`."""
_KILL, _ALLOW, _ERROR = 0x80000000, 0x7FFF0000, 0x00050000


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int
    column: int
    clone: int
    fcntl: int
    ioctl: int
    socketpair: int


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 0, clone=56, fcntl=72, ioctl=16, socketpair=53),
    "aarch64": _Architecture(0xC00000B7, 1, clone=220, fcntl=25, ioctl=29, socketpair=199),
}


def is_supported() -> bool:
    return os.uname().machine in _ARCHITECTURES


def program() -> bytes:
    """The filter of this machine's architecture."""
    architecture = _ARCHITECTURES[os.uname().machine]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in _instructions(architecture))


_Instruction = tuple[int, int, int, int]


def _instructions(architecture: _Architecture) -> Iterator[_Instruction]:
    yield _LOAD, 0, 0, _ARCHITECTURE
    yield _EQUAL, 1, 0, architecture.audit
    yield _RETURN, 0, 0, _KILL
    yield _LOAD, 0, 0, _NUMBER
    yield _AT_LEAST, 0, 1, NEWEST_CALL + 1
    yield _RETURN, 0, 0, _ERROR | errno.ENOSYS
    yield from _refuse(_EQUAL, (_CLONE3,), errno.ENOSYS)
    yield from _refuse(_EQUAL, _numbers(architecture), errno.EPERM)
    yield from _inspect(architecture.clone, 0, _ANY_BIT, (_CLONE_NAMESPACES,))
    yield from _inspect(architecture.fcntl, 1, _EQUAL, _LOCKS)
    yield from _inspect(architecture.ioctl, 1, _EQUAL, _TERMINAL_INPUT)
    yield from _allow_only(architecture.socketpair, 0, socket.AF_UNIX)
    yield _RETURN, 0, 0, _ALLOW


def _numbers(architecture: _Architecture) -> tuple[int, ...]:
    return tuple(numbers[architecture.column] for numbers in REFUSED.values() if numbers[architecture.column] >= 0)


def _refuse(test: int, values: tuple[int, ...], error: int) -> Iterator[_Instruction]:
    """Of what is loaded: an error when the test holds for one of the values."""
    for value in values:
        yield test, 0, 1, value
        yield _RETURN, 0, 0, _ERROR | error


def _inspect(call: int, argument: int, test: int, values: tuple[int, ...]) -> Iterator[_Instruction]:
    """Of one call: an error when the test holds for the lower half of an argument, else it is allowed.

    The kernel reads these arguments as 32-bit numbers, so nothing hides in the upper half.
    """
    rules = list(_refuse(test, values, errno.EPERM))
    yield _EQUAL, 0, len(rules) + 2, call
    yield _LOAD, 0, 0, _ARGUMENTS + 8 * argument
    yield from rules
    yield _RETURN, 0, 0, _ALLOW


def _allow_only(call: int, argument: int, value: int) -> Iterator[_Instruction]:
    """Of one call: an error unless the lower half of an argument is `value`."""
    yield _EQUAL, 0, 4, call
    yield _LOAD, 0, 0, _ARGUMENTS + 8 * argument
    yield _EQUAL, 1, 0, value
    yield _RETURN, 0, 0, _ERROR | errno.EPERM
    yield _RETURN, 0, 0, _ALLOW
