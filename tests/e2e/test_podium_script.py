"""`./podium`: it makes its environment when it has to, and only then. A stub stands in for Python and pip."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from core.settings import CHECKOUT

PYTHON = """\
#!/bin/sh
# Says what it is asked to do; as `-m venv DIR` it makes an environment of more such stubs.
echo "$*" >>"$CALLS"
case "$*" in
"-m venv "*)
    mkdir -p "$3/bin"
    cp "$0" "$3/bin/python"
    printf '#!/bin/sh\\necho "podium $*"\\n' >"$3/bin/podium"
    chmod +x "$3/bin/podium" ;;
*"$FAILING"*) echo "no such luck"; exit 1 ;;
esac
"""


class Checkout:
    """A copy of the script beside the files that it reads, with the stub first on PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        self.folder.mkdir()
        self._calls = folder / "calls"
        shutil.copy(CHECKOUT / "podium", self.folder)
        (self.folder / "pyproject.toml").write_text('worker = ["torch==2.0"]\n')
        (self.folder / "constraints.txt").write_text("torch==2.0\n")
        stub = folder / "bin/python3"
        stub.parent.mkdir()
        stub.write_text(PYTHON)
        stub.chmod(0o755)
        self._env = {"PATH": f"{stub.parent}:{os.environ['PATH']}", "CALLS": str(self._calls)}

    def run(self, *arguments: str, failing: str = "no step") -> subprocess.CompletedProcess[str]:
        self._calls.write_text("")
        command = [self.folder / "podium", *arguments]
        return subprocess.run(
            command, env={**self._env, "FAILING": failing}, capture_output=True, text=True, check=False
        )

    @property
    def installed(self) -> list[str]:
        """What the last run gave pip to install."""
        lines = self._calls.read_text().splitlines()
        return [line.split()[4] for line in lines if line.startswith("-m pip install")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_first_start_makes_the_environment_and_hands_over(checkout: Checkout) -> None:
    first = checkout.run("up", "--port", "0")
    assert (first.returncode, first.stdout) == (0, "podium up --port 0\n")
    assert checkout.installed == ["torch==2.0", "-e"]
    assert "It downloads torch==2.0" in first.stderr


def test_a_later_start_only_hands_over(checkout: Checkout) -> None:
    checkout.run("up")
    again = checkout.run("demo")
    assert (again.returncode, again.stdout, again.stderr) == (0, "podium demo\n", "")
    assert checkout.installed == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed(checkout: Checkout, name: str) -> None:
    checkout.run("up")
    with (checkout.folder / name).open("a") as file:
        file.write("# newer\n")
    assert checkout.run("up").stdout == "podium up\n"
    assert checkout.installed == ["torch==2.0", "-e"]


def test_an_environment_whose_python_has_gone_is_made_anew(checkout: Checkout) -> None:
    checkout.run("up")
    python = checkout.folder / ".venv/bin/python"
    python.unlink()
    python.symlink_to(checkout.folder / "gone")
    again = checkout.run("up")
    assert (again.returncode, again.stdout) == (0, "podium up\n")
    assert checkout.installed == ["torch==2.0", "-e"]


def test_a_step_that_fails_is_named_with_its_words_and_tried_again_next_time(checkout: Checkout) -> None:
    failed = checkout.run("up", failing="pip install")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "podium: this failed:" in failed.stderr
    assert "no such luck" in failed.stderr
    assert checkout.run("up").stdout == "podium up\n"
    assert checkout.installed == ["torch==2.0", "-e"]
