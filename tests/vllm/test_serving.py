"""An engine serves the policy that is trained, whichever way it gets there, and nothing of the trainer changes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("native", [True, False], ids=["native", "merged"])
def test_an_adapter_is_served_as_it_is_trained(
    aside: Callable[..., Any], model: Path, tmp_path: Path, native: bool
) -> None:
    seen = aside("serve", model, tmp_path, {"native": native})
    assert max(seen["gaps"]) < 1e-4
    assert seen["fresh"] < 1e-4 < 0.02 < seen["stale"]


def test_a_base_in_bfloat16_is_bit_for_bit_the_same_after_four_syncs(
    aside: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    seen = aside("serve", model, tmp_path, {"native": False, "bf16": True})
    assert seen["changed"] == []
    assert max(seen["gaps"]) < 0.1


def test_a_fully_trained_model_is_pushed_as_it_is(aside: Callable[..., Any], model: Path, tmp_path: Path) -> None:
    seen = aside("serve", model, tmp_path, {"native": False, "full": True})
    assert max(seen["gaps"]) < 1e-4
    assert seen["fresh"] < 1e-4 < 0.02 < seen["stale"]


def test_a_request_is_answered_by_its_seed_whatever_else_is_asked(
    aside: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    seen = aside("ask_by_seed", model, tmp_path)
    assert seen["alone"][0] == seen["whole"][3]
    assert seen["backwards"][0] == seen["whole"][2]
    assert seen["whole"][0] != seen["whole"][1]
    assert seen["undisturbed"]


def test_a_request_that_vllm_refuses_is_the_samplers_failure(
    aside: Callable[..., Any], model: Path, tmp_path: Path
) -> None:
    assert "while preparing its requests" in aside("ask_for_what_vllm_refuses", model, tmp_path)


@pytest.mark.parametrize(
    "ways", [{"native": True}, {"native": False}, {"native": True, "bf16": True}], ids=["native", "merged", "bf16"]
)
def test_a_sync_that_does_not_arrive_is_seen_before_a_token_is_sampled(
    aside: Callable[..., Any], model: Path, tmp_path: Path, ways: dict[str, Any]
) -> None:
    assert "before step 2 the sampler serves" in aside("go_stale", model, tmp_path, ways)


def test_a_base_in_four_bits_is_unfolded_and_merged(aside: Callable[..., Any], model: Path) -> None:
    assert aside("unfold_four_bits", model) < 1e-4
