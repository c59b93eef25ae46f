"""Log-probabilities of completion tokens from a layout: TRL's fused head, given nothing but the positions it scores."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from worker.training.fast_path.layout import Layout
from worker.training.fast_path.operations import Costs


def score(model: Any, layout: Layout, *, rows: int, completion_width: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability and entropy of each token, both (rows, completion width); as in TRL 0 where there is none.

    The entropy is None for a reference model, whose head TRL makes without it.
    """
    structure: dict[str, torch.Tensor] = {}
    if layout.attention_mask is not None and layout.position_ids is not None:
        structure = {"attention_mask": layout.attention_mask, "position_ids": layout.position_ids}
    with _only_states_at(layout.places, backbone(model)):
        outputs = model(input_ids=layout.input_ids, shift_labels=layout.targets[None], fused_lm_head=True, **structure)

    def in_rows(numbers: torch.Tensor) -> torch.Tensor:
        flat = numbers.new_zeros(rows * completion_width).scatter(0, layout.slots, numbers[0])
        return flat.view(rows, completion_width)

    return in_rows(outputs.log_probs), None if outputs.entropy is None else in_rows(outputs.entropy)


def backbone(model: Any) -> nn.Module:
    """The layers below the language model's head."""
    module: nn.Module = causal_of(model).base_model
    return module


def causal_of(model: Any) -> Any:
    """The language model itself, inside whatever adapters and wrapper."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return inner.get_base_model() if isinstance(inner, PeftModel) else inner


def costs_of(model: Any) -> Costs:
    config = causal_of(model).config.get_text_config()
    linear = [module for module in backbone(model).modules() if isinstance(module, nn.Linear)]
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Costs(
        token=2.0 * sum(module.in_features * module.out_features for module in linear),
        pair=4.0 * heads * width * config.num_hidden_layers,
        label=2.0 * config.hidden_size * config.vocab_size,
    )


@contextmanager
def _only_states_at(places: torch.Tensor, module: nn.Module) -> Iterator[None]:
    """What `module` returns are the hidden states at `places` of its flattened input, as one sequence.

    On a CPU the fused head would project every position it is given, and a prompt has many that nobody scores.
    """

    def keep(_module: nn.Module, _arguments: Any, outputs: Any) -> Any:
        states = outputs.last_hidden_state
        outputs.last_hidden_state = states.reshape(-1, states.shape[-1])[places][None]
        return outputs

    hook = module.register_forward_hook(keep)
    try:
        yield
    finally:
        hook.remove()
