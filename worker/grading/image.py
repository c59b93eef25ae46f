"""What is in a sandbox: the declared image. The standard library, the libraries below, the system's own, our few files.

Each piece is shown read-only at a path of its own; nothing else of the environment that the worker runs in (torch, the
drivers of our database, the settings) can be imported or read.
"""

import compileall
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

DISTRIBUTIONS = (
    *("numpy", "scipy", "sympy", "mpmath", "regex", "rapidfuzz"),
    *("math-verify", "latex2sympy2_extended", "antlr4-python3-runtime"),
    *("pydantic", "pydantic-core", "annotated-types", "typing-inspection"),  # for our built-in rewards
    *("jsonschema", "jsonschema-specifications", "referencing", "rpds-py", "attrs", "typing-extensions"),
)
"""Beside the standard library: `core.reward_imports.REWARD_LIBRARIES` and what those need."""
LIBRARIES = Path("/libraries")
PROGRAM = Path("/podium")
DEVICES = ("null", "zero", "full", "random", "urandom")

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM_PARTS = ("core", "worker/__init__.py", "worker/parent.py", "worker/grading")
_SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/share/zoneinfo")
_SYSTEM_ROOTS = ("/lib", "/lib64")
"""Links into /usr on most systems, folders on some."""
_SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")


@dataclass(frozen=True, slots=True)
class Shown:
    """A file or folder of the host, and where it is seen inside."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Image:
    shown: tuple[Shown, ...]
    """Read-only. A folder comes before what is hidden in it."""
    links: tuple[Shown, ...]
    """Symbolic links to make; the source is the link's text."""
    hidden: tuple[Path, ...]
    """Folders that are empty inside, though what contains them is shown."""
    python: Path
    search_path: tuple[str, ...]
    """Added to `sys.path`."""
    libraries: tuple[str, ...]
    """Name and version of each."""
    missing: tuple[str, ...]
    """Declared, but not installed here."""


@cache
def image() -> Image:
    """Of this process's interpreter and environment."""
    _compile()
    installed = {name: _find(name) for name in DISTRIBUTIONS}
    found = [one for one in installed.values() if one is not None]
    system, links = _system()
    return Image(
        shown=(*system, *_python(), *(part for one in found for part in _parts(one)), *_program()),
        links=tuple(links),
        hidden=tuple(path for path in (_base_packages(), _SYSTEM_PACKAGES) if path.is_dir()),
        python=_executable(),
        search_path=(str(PROGRAM), str(LIBRARIES)),
        libraries=tuple(f"{one.name} {one.version}" for one in found),
        missing=tuple(name for name, one in installed.items() if one is None),
    )


def _find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _parts(installed: Distribution) -> Iterator[Shown]:
    """What of a distribution stands directly in site-packages: packages, modules, and its metadata, which some read."""
    tops = {file.parts[0] for file in installed.files or ()}
    for top in sorted(tops - {"..", "__pycache__"}):
        source = Path(str(installed.locate_file(top)))
        if source.exists():
            yield Shown(source.resolve(), LIBRARIES / top)


def _program() -> Iterator[Shown]:
    for part in _PROGRAM_PARTS:
        yield Shown(_PACKAGE_ROOT / part, PROGRAM / part)


def _python() -> Iterator[Shown]:
    """The interpreter behind the virtual environment, where it would look for its own files."""
    prefix = Path(sys.base_prefix).resolve()
    if prefix == Path("/usr"):
        yield Shown(_executable(), _executable())
        return
    for path in (_executable(), prefix / "lib"):
        yield Shown(path, path)


def _executable() -> Path:
    return Path(sys.executable).resolve()


def _base_packages() -> Path:
    """Where the interpreter behind the virtual environment keeps packages of its own."""
    bases = {name: str(Path(sys.base_prefix).resolve()) for name in ("base", "platbase", "installed_base")}
    return Path(sysconfig.get_path("purelib", "posix_prefix", vars=bases))


def _system() -> tuple[list[Shown], list[Shown]]:
    """The libraries of the system, and the time zones: no programs, no configuration."""
    shown = [Shown(path, path) for path in map(Path, _SYSTEM) if path.is_dir()]
    links = []
    for path in map(Path, _SYSTEM_ROOTS):
        if path.is_symlink():
            links.append(Shown(path.readlink(), path))
        elif path.is_dir():
            shown.append(Shown(path, path))
    return shown, links


def _compile() -> None:
    """The child cannot write bytecode, and would compile its own modules at every start."""
    if not sys.dont_write_bytecode:
        compileall.compile_dir(_PACKAGE_ROOT / "worker" / "grading", maxlevels=2, quiet=2)
