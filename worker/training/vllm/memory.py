"""How a trainer and a vLLM engine share one GPU. Pure: bytes in, a share out."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from core.spec import JobSpec
from worker.training.config import rollouts_per_pass
from worker.training.environment import Device
from worker.training.failures import SamplerDoesNotFit
from worker.training.fast_path.scoring import causal_of

GIB = 2**30
USABLE = 0.92
"""Of a GPU. The rest is the driver's, and what allocators lose between their blocks."""
ENGINE_EXTRA = 2 * GIB
"""CUDA graphs, workspaces, and a prefill of 4,096 tokens."""
LEAST_AT_ONCE = 0.25
"""Of a step's rollouts must fit into the engine's cache while the trainer keeps its memory. With less, rollouts come in
so many rounds that sleeping (weights out and in, each step) is cheaper."""
TOKEN_LAYER_BYTES = 34
"""Kept for the backward pass by each layer, per token and hidden unit, in 16 bits, attention scores not counted
(Korthikanti et al. 2022, arXiv 2205.05198, section 4.1); with checkpointing it is 2, and one layer in full."""
HEAD_TILE_BYTES = GIB
"""TRL's fused head: tiles of 4,096 x 32,768 logits, in fp32, with their gradient."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes."""

    total: int
    """Of the GPU."""
    resident: int
    """Of the trainer, always: weights, gradients, moments."""
    passing: int
    """Of the trainer during its passes or an evaluation, on top."""
    weights: int
    """Of the engine."""
    longest: int
    """Cache of one rollout at full length."""
    all_rollouts: int
    """Cache of a step's rollouts, all at full length."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    share: float
    """vLLM's `gpu_memory_utilization`: the engine's part of the GPU's total memory."""
    sleeps: bool
    """Whether the engine gives its memory back while the trainer computes."""


def plan_memory(needs: Needs, *, share: float | None = None) -> MemoryPlan:
    """All that the engine can use, if it fits beside the trainer; else it takes turns with the trainer's passes.

    `share`: what the job asks for instead. Raises `SamplerDoesNotFit`.
    """
    fixed = needs.weights + ENGINE_EXTRA
    beside = USABLE * needs.total - needs.resident - needs.passing
    in_turns = USABLE * needs.total - needs.resident
    if share is not None:
        return MemoryPlan(share, sleeps=share * needs.total > beside)
    if beside >= fixed + max(needs.longest, LEAST_AT_ONCE * needs.all_rollouts):
        return MemoryPlan(_share(min(beside, fixed + needs.all_rollouts), needs), sleeps=False)
    if in_turns >= fixed + needs.longest:
        return MemoryPlan(_share(min(in_turns, fixed + needs.all_rollouts), needs), sleeps=True)
    raise SamplerDoesNotFit(
        f"The trainer keeps {needs.resident / GIB:.1f} GiB of {needs.total / GIB:.1f}, and a vLLM engine that can hold "
        f"one rollout needs {(fixed + needs.longest) / GIB:.1f} GiB."
    )


def estimate_needs(
    model: nn.Module, spec: JobSpec, device: Device, *, total: int, tokens: int, evaluated: int
) -> Needs:
    """`tokens`: of the longest prompt and its completion; `evaluated`: at once, by an evaluation, which samples with
    the trainer's own model. The engine computes in the device's type.
    """
    config = causal_of(model).config.get_text_config()
    width = device.compute_dtype.itemsize
    rollouts = spec.hyperparameters.rollouts_per_step
    trained = tokens * rollouts_per_pass(spec.hyperparameters, spec.resources.gpus, device)
    cache = token_cache_bytes(config, width)
    return Needs(
        total=total,
        resident=_resident(model),
        passing=max(_passing(config, spec, trained, width), _evaluating(config, evaluated, width)),
        weights=width * _count(causal_of(model)),
        longest=cache * tokens,
        all_rollouts=cache * tokens * rollouts,
    )


def token_cache_bytes(config: Any, width: int) -> int:
    """Keys and values of one token in all layers; `width`: bytes of a number."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * size * width)


def _resident(model: nn.Module) -> int:
    """A gradient and AdamW's two moments have the type of their parameter."""
    return sum(one.numel() * one.element_size() * (4 if one.requires_grad else 1) for one in model.parameters())


def _passing(config: Any, spec: JobSpec, tokens: int, width: int) -> int:
    layers = config.num_hidden_layers
    kept = layers * TOKEN_LAYER_BYTES
    if spec.hyperparameters.gradient_checkpointing:
        kept = layers * 2 + TOKEN_LAYER_BYTES
    return int(tokens * config.hidden_size * kept * width / 2) + HEAD_TILE_BYTES


def _evaluating(config: Any, tokens: int, width: int) -> int:
    """Keys and values of a batch, and one layer of its prompts in full."""
    return int(tokens * (token_cache_bytes(config, width) + config.hidden_size * TOKEN_LAYER_BYTES * width / 2))


def _count(model: nn.Module) -> int:
    """Weights, unpacked: a 4-bit parameter holds two in a byte."""
    sizes = (getattr(one, "quant_state", None) for one in model.parameters())
    shapes = (one.shape if state is None else state.shape for one, state in zip(model.parameters(), sizes, strict=True))
    return sum(shape.numel() for shape in shapes)


def _share(size: float, needs: Needs) -> float:
    return round(size / needs.total, 3)
