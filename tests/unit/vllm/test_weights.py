"""The weights that a sampler is given: PEFT's merge, without the trainer's own being touched."""

import copy

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import Qwen3Config, Qwen3ForCausalLM

from worker.training.failures import SamplerCannotMerge
from worker.training.vllm.weights import dithered, policy_weights, require_mergeable


def base_model(dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(dtype)


def policy(dtype: torch.dtype = torch.float32, **lora: object) -> PeftModel:
    """A policy that has learned something: no adapter is zero."""
    arguments = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False}
    return get_peft_model(base_model(dtype), LoraConfig(**(arguments | lora)))


def test_they_are_what_peft_merges() -> None:
    model = policy()
    ours = dict(policy_weights(model, torch.float32, adapted_only=False))
    theirs = dict(copy.deepcopy(model).merge_and_unload().named_parameters())
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6)


def test_an_adapter_of_rank_stabilised_scaling_is_merged_by_its_own_scaling() -> None:
    model = policy(use_rslora=True)
    ours = dict(policy_weights(model, torch.float32, adapted_only=True))
    theirs = dict(copy.deepcopy(model).merge_and_unload().named_parameters())
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], rtol=0, atol=1e-6)


def test_only_what_an_adapter_changes_is_handed_over_when_asked() -> None:
    model = policy(target_modules=["q_proj", "down_proj"])
    names = [name for name, _ in policy_weights(model, torch.float32, adapted_only=True)]
    assert sorted(names) == [
        f"model.layers.{layer}.{name}.weight" for layer in (0, 1) for name in ("mlp.down_proj", "self_attn.q_proj")
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_of_the_trainer_changes(dtype: torch.dtype) -> None:
    model = policy(dtype)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in range(4):
        for _name, weight in policy_weights(model, dtype, adapted_only=True):
            weight.add_(1)  # whoever takes a merged weight may write into it
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]), name


def test_a_fully_trained_model_is_handed_over_as_it_is() -> None:
    model = base_model()
    ours = dict(policy_weights(model, torch.float32, adapted_only=False))
    assert ours.keys() == dict(model.named_parameters()).keys()
    assert all(torch.equal(ours[name], parameter) for name, parameter in model.named_parameters())


def test_in_bfloat16_an_adapter_smaller_than_the_grid_is_not_lost() -> None:
    """A step of the grid is 2^-7 at 1; what is added is a twentieth of it, in every element of 250,000."""
    weight, added = torch.ones(500, 500), 2**-7 / 20
    to_the_nearest = (weight + added).to(torch.bfloat16).float()
    ours = dithered(weight + added, seed=1).float()
    assert (to_the_nearest - weight).mean().item() == 0
    assert (ours - weight).mean().item() == pytest.approx(added, rel=0.05)
    assert set((ours - weight).unique().tolist()) == {0.0, 2**-7}


def test_where_nothing_was_added_the_base_is_served_to_the_bit() -> None:
    base = torch.randn(64, 64).to(torch.bfloat16)
    assert torch.equal(dithered(base.float(), seed=5), base)
    assert torch.equal(dithered(base.float() + 1e-4, seed=5), dithered(base.float() + 1e-4, seed=5))


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")
def test_an_adapter_of_embeddings_is_refused_by_name() -> None:
    with pytest.raises(SamplerCannotMerge, match="embed_tokens"):
        require_mergeable(policy(target_modules=["embed_tokens"]))
    require_mergeable(policy())
