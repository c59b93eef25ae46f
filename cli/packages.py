"""Where the servers that come as wheels lie on disk."""

from importlib.util import find_spec
from pathlib import Path

from cli.errors import LocalPartMissing


def package_folder(package: str) -> Path:
    """The folder of an installed package, without importing it. Raises LocalPartMissing."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise LocalPartMissing(f"The package {package} is not installed.")
    return Path(spec.origin).parent
