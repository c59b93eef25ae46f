"""`podium test` and `podium bench`: the checkout examines itself, in child processes with their own output."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cli import vllm_environment
from cli.errors import BenchUnknown
from cli.terminal import say
from core.settings import CHECKOUT

STATIC_CHECKS = {
    "lint": ("ruff", "check", "."),
    "format": ("ruff", "format", "--check", "."),
    "types": ("mypy",),
    "imports": ("lint-imports",),
}
WHOLE_SUITE = ("-n", "3", "--dist", "loadfile", "--no-loadscope-reorder")
"""Three processes, a file to each at a time: files share what takes long to start, and half of their time is waiting,
so two cores are busy with three of them. The order is that of tests/conftest.py."""
ONE_THREAD_EACH = {"OMP_NUM_THREADS": "1"}
"""For the suite in several processes: with more threads than cores torch waits for itself, several times as long."""
BYTE_CODE_KEPT = {"PYTHONDONTWRITEBYTECODE": ""}
"""Whatever the shell says: the suite starts hundreds of processes, and each would compile the same modules anew."""
BENCHES = CHECKOUT / "bench"
VLLM_TESTS = CHECKOUT / "tests/vllm"


def run_tests(pytest_arguments: Sequence[str], *, fast: bool) -> int:
    """Every check runs, whatever the earlier ones said; pytest has the last word. The first failure's exit code."""
    codes = [] if fast else [_check(name, command) for name, command in STATIC_CHECKS.items()]
    command = ("pytest", *(pytest_arguments or WHOLE_SUITE))
    _announce("tests", command)
    threads = {} if pytest_arguments else ONE_THREAD_EACH
    codes.append(_run((_script(command[0]), *command[1:]), {**threads, **os.environ, **BYTE_CODE_KEPT}))
    return next((code for code in codes if code != 0), 0)


def run_vllm_tests(pytest_arguments: Sequence[str]) -> int:
    """tests/vllm against the real vLLM on a CPU, in an environment of its own. Raises EnvironmentNotMade."""
    python = vllm_environment.ensure()
    where = (str(VLLM_TESTS), "--confcutdir", str(VLLM_TESTS), "--timeout", "1800")
    command = ("pytest", *where, *pytest_arguments)
    _announce("tests with vLLM", command)
    return _run((str(python), "-m", *command))


def run_bench(name: str, arguments: Sequence[str]) -> int:
    """Raises BenchUnknown with the names there are."""
    names = sorted(path.stem for path in BENCHES.glob("[!_]*.py"))
    if name not in names:
        raise BenchUnknown(f"There is no bench {name!r}.", param="name", fix=f"Choose one of: {', '.join(names)}")
    return _run((sys.executable, "-m", f"bench.{name}", *arguments))


def _check(name: str, command: Sequence[str]) -> int:
    _announce(name, command)
    code = _run((_script(command[0]), *command[1:]))
    if code != 0:
        say(f"==> {name} failed with exit code {code}", style="red")
    return code


def _announce(name: str, command: Sequence[str]) -> None:
    say(f"==> {name}: {' '.join(command)}", style="bold")


def _script(name: str) -> str:
    """A tool of this environment, whatever PATH says."""
    return str(Path(sys.executable).with_name(name))


def _run(command: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    return subprocess.run(command, cwd=CHECKOUT, env=environment, check=False).returncode
