"""Rewards that read or write what is not theirs. An attack returns 1 when it got nothing."""

import contextlib
import ctypes
import importlib
import os
import socket
import sys
import tempfile
from pathlib import Path

WRITABLE = {"/tmp", "/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}


def reward(completion, facts):
    return 1.0 if completion == "fine" else globals()[completion](facts)


def _is_refused(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return True
    return False


def environment(facts):
    return dict(os.environ) == {}


def environment_of_the_c_library(facts):
    pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
    names = set()
    for index in range(1000):
        if pointer[index] is None:
            return names <= {b"OMP_NUM_THREADS", b"OPENBLAS_NUM_THREADS", b"MKL_NUM_THREADS"}
        names.add(pointer[index].partition(b"=")[0])


def proc(facts):
    return all(_is_refused(Path("/proc", of, name).read_bytes) for of in ("1", "self") for name in ("environ", "maps"))


def root_of_another_process(facts):
    return all(_is_refused(os.listdir, f"/proc/{pid}/root") for pid in (1, "self", facts["client_pid"]))


def host_files(facts):
    paths = ["/etc/passwd", "/etc/shadow", "/etc/hostname", "/root/.ssh", "/root/.aws", "/home", "/var", "/run", "/sys"]
    return all(_is_refused(os.stat, path) for path in paths)


def run_directory_and_held_out_set(facts):
    return _is_refused(open, facts["held_out"]) and _is_refused(os.listdir, facts["run_directory"])


def our_checkout(facts):
    seen = set(os.listdir("/podium"))
    return _is_refused(os.stat, f"{facts['checkout']}/pyproject.toml") and seen == {"core", "worker"}


def symbolic_links(facts):
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, "link")
        link.symlink_to(facts["held_out"])
        up = Path(folder, "up")
        up.symlink_to("/tmp/../../../../.." + facts["held_out"])
        return _is_refused(link.read_bytes) and _is_refused(up.read_bytes)


def other_tenant(facts):
    """Another sandbox keeps a file of this name in its own /tmp."""
    return not os.path.exists(facts["tenant_file"])


def unexpected_folders(facts):
    """To list the root is refused; whether something is there is not."""
    usual = "bin boot etc home lib lib64 media mnt opt root run sbin srv sys usr var".split()
    there = {name for name in usual if os.path.exists(f"/{name}")}
    return "usr" in there and there <= {"lib", "lib64", "usr", Path(sys.base_prefix).parts[1]}


def programs_of_the_system(facts):
    return not any(Path(folder).exists() for folder in ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local"))


def libraries_of_the_worker(facts):
    for name in ("torch", "transformers", "psycopg", "boto3", "redis", "sqlalchemy", "fastapi", "requests", "pip"):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
            return 0.0
    return 1.0


def devices(facts):
    names = ("mem", "kmsg", "sda", "vda", "nvme0n1", "tty", "ptmx", "pts", "shm", "fuse", "kvm", "net/tun", "nvidia0")
    return not any(os.path.exists(f"/dev/{name}") for name in names) and os.path.exists("/dev/urandom")


def device_made_by_oneself(facts):
    return _is_refused(os.mknod, "/tmp/disk", 0o60600, os.makedev(8, 0))


def write_everywhere(facts):
    """Try to make a file in every folder, and to change some files of each."""
    if not all(_is_unchanged(folder, ()) for folder in ("/", "/dev")):  # they cannot be listed
        return 0.0
    roots = ("/usr", "/podium", "/libraries", sys.base_prefix)
    walked = [[_is_unchanged(*each) for each in _folders(root)] for root in roots]
    return all(len(folders) >= 5 and all(folders) for folders in walked)


def _folders(root):
    """Of the upper levels."""
    for folder, below, files in os.walk(root):
        if folder.count("/") - root.count("/") >= 3:
            below.clear()
        if folder not in WRITABLE:
            yield folder, files


def _is_unchanged(folder, files):
    paths = [f"{folder}/{name}" for name in files[:5]]
    writes = [path for path in paths if path not in WRITABLE and not _is_refused(os.open, path, os.O_WRONLY)]
    return not writes and _is_refused(Path(folder, "new").touch) and _is_refused(os.mkdir, f"{folder}/new")


def change_our_program(facts):
    path = "/podium/worker/grading/child.py"
    calls = [
        (os.chmod, path, 0o777),
        (os.remove, path),
        (os.rename, path, "/tmp/child.py"),
        (os.link, path, "/tmp/child.py"),
        (os.symlink, "/tmp", "/podium/worker/new"),
        (os.truncate, path, 0),
        (os.utime, path),
    ]
    return all(_is_refused(*call) for call in calls)


def change_a_library(facts):
    import numpy

    return _is_refused(os.open, numpy.__file__, os.O_WRONLY) and _is_refused(os.remove, numpy.__file__)


def leave_something_for_the_next(facts):
    """The host must not see it: a test looks."""
    Path("/tmp/surprise").touch()
    return 1.0


def user_of_the_worker(facts):
    return os.getuid() == 65534 and _is_refused(os.setuid, 0) and _is_refused(os.setgroups, [0])


def tcp_to_a_port_of_the_host(facts):
    return _is_refused(socket.create_connection, ("127.0.0.1", facts["port"]), 1)


def tcp_with_a_bare_system_call(facts):
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0) == -1 and ctypes.get_errno() == 1


def udp(facts):
    return _is_refused(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)


def raw_packets(facts):
    return _is_refused(socket.socket, socket.AF_PACKET, socket.SOCK_RAW)


def metadata_server(facts):
    return _is_refused(socket.create_connection, ("169.254.169.254", 80), 1)


def names_of_hosts(facts):
    return _is_refused(socket.getaddrinfo, "example.com", 80)


def unix_socket_of_the_host(facts):
    return _is_refused(socket.socket, socket.AF_UNIX) and _is_refused(os.stat, facts["unix_socket"])


def unix_socket_by_descriptor(facts):
    """A pair needs no socket(2): what it cannot do is reach anybody else."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        abstract = "\0" + facts["abstract_socket"]
        return all(_is_refused(ours.sendto, b"hello", path) for path in (abstract, facts["unix_socket"]))


def hypervisor_and_kernel_sockets(facts):
    families = [socket.AF_VSOCK, socket.AF_ALG, socket.AF_NETLINK, socket.AF_CAN, socket.AF_TIPC]
    return all(_is_refused(socket.socket, family, socket.SOCK_RAW) for family in families)


def listening(facts):
    return _is_refused(socket.create_server, ("127.0.0.1", 0))
