"""vLLM's CPU backend packs weights into a form that takes no new ones; here they stay as they were loaded."""

from typing import Any

import torch
from vllm.model_executor.layers import linear, vocab_parallel_embedding


def keep_weights_plain() -> None:
    linear.UnquantizedLinearMethod.process_weights_after_loading = _keep
    vocab_parallel_embedding.UnquantizedEmbeddingMethod.process_weights_after_loading = _keep


def _keep(_method: Any, layer: Any) -> None:
    layer.cpu_linear = lambda x, _weight, bias=None: torch.nn.functional.linear(x, layer.weight, bias)
