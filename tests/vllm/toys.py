"""A toy policy that vLLM's CPU backend can serve, and what serves it: real parts, 60 thousand parameters."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tests.worker.training.runs import save_toy_model
from worker.training.environment import Device
from worker.training.phases import PhaseTimer
from worker.training.vllm.canary import Canary
from worker.training.vllm.engine import Engine, EngineSettings
from worker.training.vllm.native import AdapterFolder, room_for
from worker.training.vllm.sampler import ColocatedSampler, Serving
from worker.training.vllm.seeds import RequestSeeds
from worker.training.vllm.start import scorer

RANK = 4
PROMPTS = [[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16]]
DRAWING = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 8, "stop_token_ids": [1]}
CPU = Device("cpu", "cpu", bf16=False)
BF16 = Device("cpu", "cpu", bf16=True)


def save_model_for_vllm(folder: Path, chat: bool = True) -> None:
    """Heads of 32: what its CPU kernels begin with."""
    save_toy_model(folder, chat)
    config = Qwen3Config.from_pretrained(folder, head_dim=32, architectures=["Qwen3ForCausalLM"])
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)


@dataclass
class Bench:
    """A trainer's model and a sampler that serves it."""

    model: Any
    engine: Engine
    sampler: ColocatedSampler
    steps: list[int] = field(default_factory=lambda: [0])

    @property
    def base(self) -> dict[str, torch.Tensor]:
        return {name: one.detach().clone() for name, one in self.model.named_parameters() if "lora_" not in name}

    def learn(self, size: float) -> None:
        """An optimizer step that moves the policy."""
        generator = torch.Generator().manual_seed(self.steps[0])
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=size)
        self.steps[0] += 1

    def sample(self, rows: list[int]) -> list[list[int]]:
        return self.sampler.generate([PROMPTS[row] for row in rows], None, 1)[1]


def make_bench(model_folder: Path, folder: Path, *, device: Device = CPU, native: bool, full: bool = False) -> Bench:
    dtype = device.compute_dtype
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype)
    if not full:
        torch.manual_seed(1)
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=8, target_modules="all-linear"))
    engine = Engine(
        EngineSettings(
            model=str(model_folder),
            revision=None,
            dtype=dtype,
            memory={"kv_cache_memory_bytes": 2**26},
            sleeps=False,
            tokens=128,
            requests=16,
            seed=7,
            is_cuda=False,
            adapter=room_for(model, RANK) if native else None,
        )
    )
    steps = [0]
    score_base = None if full else scorer(model, device, with_adapter=False)
    sampler = ColocatedSampler(
        model,
        engine,
        Serving(
            dtype,
            sleeps=False,
            share=None,
            adapters=AdapterFolder(folder) if native else None,
            trains_everything=full,
            has_the_base=not full,
            merges=None if native else "asked for",
        ),
        canary=Canary(PROMPTS, dtype, score_base=score_base),
        score=scorer(model, device),
        seeds=RequestSeeds(7),
        drawing=DRAWING,
        step=lambda: steps[0],
        phases=PhaseTimer(),
    )
    return Bench(model, engine, sampler, steps)
