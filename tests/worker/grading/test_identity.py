"""Who a sandbox's processes become, and that what they need is theirs to read."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from core.settings import CHECKOUT
from tests.worker.grading.conftest import as_user
from worker.grading import identity, image, sandbox
from worker.grading.identity import FEW_UIDS, UIDS, unreadable, user_to_become
from worker.grading.sandbox import SandboxUnavailable, find_sandbox

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
WHOLE = "0 0 4294967295\n"


def process(folder: Path, *, uids: str = WHOLE, gids: str = WHOLE, groups: str = "allow\n") -> Path:
    for name, text in {"uid_map": uids, "gid_map": gids, "setgroups": groups}.items():
        (folder / name).write_text(text)
    return folder


@needs_root
def test_root_of_a_machine_becomes_one_of_many_users(tmp_path):
    assert user_to_become(process(tmp_path)) in UIDS


@needs_root
def test_root_of_a_rootless_container_becomes_one_of_its_own_users(tmp_path):
    few = "0 1000 1\n1 100000 65536\n"
    assert user_to_become(process(tmp_path, uids=few, gids=few)) in FEW_UIDS


@needs_root
@pytest.mark.parametrize(
    "change", [{"uids": "0 1000 1\n", "gids": "0 1000 1\n", "groups": "deny\n"}, {"gids": "0 5 1"}]
)
def test_root_in_name_only_stays_who_it_is(tmp_path, change):
    assert user_to_become(process(tmp_path, **{"uids": "0 1000 1\n", **change})) is None


@needs_root
def test_root_who_can_become_nobody_runs_nothing(tmp_path):
    single = "0 0 1\n"
    with pytest.raises(OSError, match="root cannot become another user here"):
        user_to_become(process(tmp_path, uids=single, gids=single, groups="deny\n"))


SINGLE_ID = """
import json, os, sys, tempfile
from pathlib import Path
from tests.polling import wait_until
from worker.grading.client import Grader, Rollout
from worker.grading.memory import tree
assert os.geteuid() == 0 and Path("/proc/self/uid_map").read_text().split()[2] == "1"
ATTACK = '''
import os, socket
def reward(completion):
    for what in ("/etc/passwd", "/proc/self/environ", "%s"):
        if os.path.exists(what):
            return 1.0
    try:
        socket.socket()
        return 2.0
    except OSError:
        pass
    return 0.0
'''
with tempfile.TemporaryDirectory() as folder:
    secret = Path(folder, "secret")
    secret.write_text("mine")
    source = Path(folder, "reward.py")
    source.write_text(ATTACK % secret)
    with Grader(source) as grader:
        caps = [
            line.split()[1]
            for pid in list(tree(grader.pid))[1:]
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("CapEff")
        ]
        print(json.dumps([grader.grade([Rollout("", "", [], {})])[0].value, caps]))
"""


def test_root_in_name_only_is_isolated_as_a_user_without_rights_is():
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare(1) here")
    command = as_user("rootless", [unshare, "--user", "--map-root-user", sys.executable, "-c", SINGLE_ID])
    ended = subprocess.run(command, cwd=CHECKOUT, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    value, caps = json.loads(ended.stdout)
    assert value == 0.0
    assert {int(each, 16) for each in caps} == {0}


def test_what_only_its_owner_can_read_is_found(tmp_path):
    for name in ("open", "closed", "closed-inside"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name / "__init__.py").write_text("")
        (tmp_path / name / "__pycache__").mkdir(mode=0o700)
    (tmp_path / "closed").chmod(0o700)
    (tmp_path / "closed-inside/__init__.py").chmod(0o600)
    (tmp_path / "file.py").write_text("")
    (tmp_path / "file.py").chmod(0o600)
    found = unreadable(tmp_path / name for name in ("open", "closed", "closed-inside", "file.py"))
    assert [path.name for path in found] == ["closed", "closed-inside", "file.py"]


@needs_root
def test_an_installation_under_a_narrow_umask_is_refused_with_the_command_that_mends_it(tmp_path, monkeypatch):
    package = tmp_path / "numpy"
    package.mkdir(mode=0o700)
    whole = image.image()
    shown = (*whole.shown, image.Shown(package, image.LIBRARIES / "numpy"))
    monkeypatch.setattr(sandbox, "image", lambda: image.Image(**{**_fields(whole), "shown": shown}))
    find_sandbox.cache_clear()
    with pytest.raises(SandboxUnavailable) as caught:
        find_sandbox()
    assert f"only the owner can read {package}" in caught.value.message
    assert f"chmod -R o+rX {package}" in caught.value.fix
    package.chmod(0o755)
    assert find_sandbox().bwrap
    assert identity.unreadable(part.source for part in whole.shown) == []


def _fields(whole: image.Image) -> dict[str, object]:
    return {name: getattr(whole, name) for name in image.Image.__slots__}
