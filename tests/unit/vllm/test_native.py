"""When vLLM serves an adapter beside its base, and what it is told of it."""

from typing import Any

import pytest

from tests.unit.test_training_config import spec
from tests.unit.vllm.test_weights import base_model, policy
from worker.training.vllm.native import LAYERS, AdapterRoom, obstacle, room_for


def test_a_dense_model_with_adapted_projections_is_served_natively() -> None:
    assert obstacle(policy(), spec()) is None
    assert obstacle(policy(target_modules=["q_proj"]), spec()) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"hyperparameters": {"max_steps": 1, "vllm_native_adapter": False}}, "vllm_native_adapter is off"),
        ({"adapter": {"method": "full"}}, "there is no adapter"),
        ({"adapter": {"method": "qlora"}}, "4 bits"),
    ],
)
def test_what_a_job_asks_for_can_be_an_obstacle(changes: dict[str, Any], why: str) -> None:
    assert why in (obstacle(policy(), spec(**changes)) or "")


def test_an_architecture_that_was_not_tried_is_an_obstacle() -> None:
    model = policy()
    model.get_base_model().config.architectures = ["Gemma3ForCausalLM"]
    assert obstacle(model, spec()) == "adapters of Gemma3ForCausalLM have not been tried"


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")
def test_an_adapted_embedding_is_an_obstacle() -> None:
    assert obstacle(policy(target_modules=["q_proj", "embed_tokens"]), spec()) == "vLLM does not adapt embed_tokens"


@pytest.mark.parametrize(("rank", "reserved"), [(1, 8), (8, 8), (9, 16), (129, 256), (512, 512)])
def test_room_is_made_for_the_next_rank_that_vllm_knows(rank: int, reserved: int) -> None:
    assert room_for(policy(), rank) == AdapterRoom(reserved, tuple(sorted(LAYERS)))


def test_room_is_made_for_the_adapted_layers_alone() -> None:
    assert room_for(policy(target_modules=["q_proj", "down_proj"]), 8).layers == ("down_proj", "q_proj")
    assert room_for(base_model(), 8).layers == ()
