"""Serving an adapter as an adapter: vLLM keeps the base that it loaded, and computes B(A(x)) beside it as we do.

A sync is then some megabytes through a folder instead of the whole model through memory, and no update is lost to the
grid of bfloat16. The rule of when that is possible is `obstacle`; what it says is in the results.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peft import PeftModel

from core.spec import AdapterMethod, JobSpec
from worker.training.export import save_policy
from worker.training.fast_path.scoring import causal_of
from worker.training.vllm.weights import adapted_layers

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM's `max_lora_rank` may be, in 0.22 as in 0.31; memory is set aside for it. Specs go no higher."""
ARCHITECTURES = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Dense decoders whose layers are called the same in transformers and in vLLM."""
LAYERS = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
"""Their linear layers, all of which vLLM adapts."""


def obstacle(model: Any, spec: JobSpec) -> str | None:
    """Why the adapter must be merged instead; None where vLLM serves it beside the base."""
    if spec.adapter.method is AdapterMethod.FULL:
        return "there is no adapter"
    if not spec.hyperparameters.vllm_native_adapter:
        return "vllm_native_adapter is off"
    if spec.adapter.method is AdapterMethod.QLORA:
        return "the engine's base is not the one in 4 bits that the adapter is trained on"
    architectures = set(causal_of(model).config.architectures or [type(causal_of(model)).__name__])
    if not architectures <= ARCHITECTURES:
        return f"adapters of {', '.join(sorted(architectures))} have not been tried"
    if odd := sorted(_kinds(model) - LAYERS):
        return f"vLLM does not adapt {odd[0]}"
    return None


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """What the engine sets aside for adapters when it starts."""

    rank: int
    layers: tuple[str, ...]
    """The last part of their names. Not told, vLLM prepares the head too, and scores prompts with it by a mapping that
    is made for samples: a failure on a CPU, and on a GPU chance (vllm-project/vllm, issues 16668 and 51594)."""


def room_for(model: Any, rank: int) -> AdapterRoom:
    return AdapterRoom(next(one for one in RANKS if rank <= one), tuple(sorted(_kinds(model))))


class AdapterFolder:
    """Where the engine reads each version of the adapter. Every version has a number of its own, from 1 on.

    vLLM knows adapters by their number and the prefix cache by their name: a number that came again would be served
    from what was loaded before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0
        shutil.rmtree(path, ignore_errors=True)

    def publish(self, model: PeftModel) -> tuple[int, Path]:
        """The adapter as it is now. The version before it is gone then: the engine has loaded it long ago."""
        self._forget(self._number)
        self._number += 1
        folder = self._place(self._number)
        folder.mkdir(parents=True)
        save_policy(model, folder)
        return self._number, folder

    def _forget(self, number: int) -> None:
        shutil.rmtree(self._place(number), ignore_errors=True)

    def _place(self, number: int) -> Path:
        return self._path / f"adapter-{number}"


def _kinds(model: Any) -> set[str]:
    return {name.rpartition(".")[2] for name in adapted_layers(model)}
