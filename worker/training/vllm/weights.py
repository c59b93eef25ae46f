"""The policy as one set of whole weights, computed beside the trainer's own, of which nothing is changed.

TRL merges the adapter into the trainer's weights, copies them, and takes the adapter off again. In bfloat16 that does
not lead back: after four rounds 12 % of the adapted weights had changed, under an adapter that was trained for the old
ones. Here W + scaling * B @ A is computed in fp32, one matrix at a time, and handed over; the trainer's W is only read.
"""

from collections.abc import Iterator
from zlib import crc32

import torch
from peft.tuners.lora import LoraLayer
from peft.utils.integrations import dequantize_bnb_weight
from torch import nn

from worker.training.failures import SamplerCannotMerge
from worker.training.fast_path.scoring import causal_of

_BASE = ".base_layer."
_LORA = ".lora_"


def policy_weights(model: nn.Module, dtype: torch.dtype, *, adapted_only: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Names as in the model's checkpoint, and weights in `dtype`; 4-bit ones are dequantised.

    At most one matrix and its fp32 copies exist at a time. `adapted_only`: what an adapter changes, nothing else; of a
    model without one, nothing at all.
    """
    causal = causal_of(model)
    layers = adapted_layers(model)
    for name, parameter in causal.named_parameters():
        owner, is_base, leaf = name.partition(_BASE)
        if is_base and leaf == "weight":
            yield f"{owner}.weight", _cast(merged(layers[owner]), dtype, owner)
        elif _LORA not in name and not adapted_only:
            yield name.replace(_BASE, "."), plain(parameter).to(dtype)


def adapted_layers(model: nn.Module) -> dict[str, LoraLayer]:
    """By the name that the layer has in the checkpoint."""
    return {name: layer for name, layer in causal_of(model).named_modules() if isinstance(layer, LoraLayer)}


def require_mergeable(model: nn.Module) -> None:
    """Raises `SamplerCannotMerge` for an adapter that is more than a product of two matrices beside a linear layer."""
    for name, layer in adapted_layers(model).items():
        if not isinstance(layer.get_base_layer(), nn.Linear) or any(layer.use_dora.values()):
            raise SamplerCannotMerge(f"The adapter of {name} is not plain LoRA on a linear layer.")


@torch.no_grad()
def merged(layer: LoraLayer) -> torch.Tensor:
    """(out, in), fp32: the base's weight and what all active adapters add to it."""
    weight = plain(layer.get_base_layer().weight).float()
    for adapter in layer.active_adapters:
        down, up = layer.lora_A[adapter].weight.float(), layer.lora_B[adapter].weight.float()
        weight = torch.addmm(weight, up, down, alpha=layer.scaling[adapter])
    return weight


def plain(parameter: torch.Tensor) -> torch.Tensor:
    """The numbers that the trainer computes with: 4-bit weights as bitsandbytes unfolds them for its products."""
    is_quantised = hasattr(parameter, "quant_state")
    weight: torch.Tensor = dequantize_bnb_weight(parameter) if is_quantised else parameter.detach()
    return weight


def _cast(weight: torch.Tensor, dtype: torch.dtype, name: str) -> torch.Tensor:
    return dithered(weight, crc32(name.encode())) if dtype is torch.bfloat16 else weight.to(dtype)


def dithered(weight: torch.Tensor, seed: int) -> torch.Tensor:
    """fp32 as bfloat16, rounded up or down with the odds of what is cut off: right on average.

    The base's weights stand on the grid of bfloat16 already. To the nearest, an adapter's share of less than half a
    step would be lost in every element, and early in a run that is all of it: the sampler would serve the base. The
    draw is fixed by `seed`, so the same weights give the same bits, and where nothing was added nothing is changed.
    """
    generator = torch.Generator(weight.device).manual_seed(seed)
    bits = torch.randint(0, 2**16, weight.shape, generator=generator, dtype=torch.int32, device=weight.device)
    bits.add_(weight.contiguous().view(torch.int32)).bitwise_and_(-(2**16))
    return bits.view(torch.float32).to(torch.bfloat16)
