"""What happens in the processes with an engine; the tests import nothing of it, and call it by name."""

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from vllm import LLM
from vllm.v1.engine.exceptions import EngineDeadError

from core import failpoints
from tests.vllm.toys import BF16, CPU, DRAWING, PROMPTS, Bench, make_bench, save_model_for_vllm
from tests.worker.training.runs import trainer_main
from worker.training.failures import SamplerFailed, StaleSampler
from worker.training.vllm.engine import Engine
from worker.training.vllm.start import scorer
from worker.training.vllm.weights import policy_weights

__all__ = ["save_model_for_vllm", "trainer_main"]

TEXTS = [[*prompt, *range(5, 25)] for prompt in PROMPTS]
STEP = 0.05
ROWS = [0, 0, 1, 2]

# Pieces: a trainer's model, an engine, and a sampler between them.


def four_syncs(bench: Bench) -> dict[str, Any]:
    """Four optimizer steps with a sync before each; in the end one more."""
    before, gaps, samples = bench.base, [], []
    for _ in range(4):
        bench.sampler.sync_weights()
        gaps.append(bench.sampler.take_metrics()["canary/logp_gap"])
        samples.append(bench.sample(ROWS))
        bench.learn(STEP)
    changed = [name for name, weight in bench.base.items() if not torch.equal(weight, before[name])]
    stale = (bench.engine.score(TEXTS) - scorer(bench.model, CPU)(TEXTS)).abs().mean().item()
    bench.sampler.sync_weights()
    fresh = (bench.engine.score(TEXTS) - scorer(bench.model, CPU)(TEXTS)).abs().mean().item()
    return {"changed": changed, "gaps": gaps, "samples": samples, "stale": stale, "fresh": fresh}


def serve(model: Path, folder: Path, ways: dict[str, Any]) -> dict[str, Any]:
    return four_syncs(make_bench(model, folder, **_of(ways)))


def ask_by_seed(model: Path, folder: Path) -> dict[str, Any]:
    bench = make_bench(model, folder, native=True)
    bench.sampler.sync_weights()
    state = torch.random.get_rng_state()
    whole = bench.sample([0, 0, 1, 2])
    undisturbed = torch.equal(state, torch.random.get_rng_state())
    bench.sampler._seeds = type(bench.sampler._seeds)(7)  # a process that begins at this step
    return {"whole": whole, "alone": bench.sample([2]), "backwards": bench.sample([1]), "undisturbed": undisturbed}


def ask_for_what_vllm_refuses(model: Path, folder: Path) -> str:
    bench = make_bench(model, folder, native=True)
    try:
        bench.engine.sample([PROMPTS[0]], [7], {**DRAWING, "temperature": -1.0})
    except SamplerFailed as failure:
        return failure.message
    return ""


class DeafEngine(Engine):
    """Takes the first sync, and no other."""

    syncs = 0

    def serve_adapter(self, number: int, folder: Path) -> None:
        self.syncs += 1
        if self.syncs == 1:
            super().serve_adapter(number, folder)

    def load(self, weights: Any, *, all_of_them: bool) -> None:
        self.syncs += 1
        if self.syncs == 1:
            super().load(weights, all_of_them=all_of_them)


def go_stale(model: Path, folder: Path, ways: dict[str, Any]) -> str:
    bench = make_bench(model, folder, **_of(ways))
    bench.engine.__class__ = DeafEngine
    bench.sampler.sync_weights()
    bench.learn(0.02)
    try:
        bench.sampler.sync_weights()
    except StaleSampler as failure:
        return failure.message
    return ""


def unfold_four_bits(model: Path) -> float:
    """Largest difference of logits: the 4-bit policy, and a plain model with the weights that the sampler would get."""
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    quantised = AutoModelForCausalLM.from_pretrained(model, quantization_config=config, dtype=torch.float32)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    policy = get_peft_model(quantised, lora)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    rest = plain.load_state_dict(dict(policy_weights(policy, torch.float32, adapted_only=False)), strict=False)
    assert not rest.unexpected_keys
    ids = torch.tensor([TEXTS[0]])
    with torch.no_grad():
        return (policy.eval()(ids).logits - plain.eval()(ids).logits).abs().max().item()


def _of(ways: dict[str, Any]) -> dict[str, Any]:
    """`bf16` as the device that has it."""
    device = BF16 if ways.get("bf16") else CPU
    return {name: value for name, value in ways.items() if name != "bf16"} | {"device": device}


# Whole runs of the trainer.


def killed_after_the_second_step(path: str) -> int:
    failpoints.arm("step.reported@3=kill")
    return trainer_main(path)


def with_an_engine_that_dies(path: str) -> int:
    whole, calls = LLM.generate, []

    def generate(self: LLM, *arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) > 4:  # the canary's texts, its scores, the first step; the second step's scores
            raise EngineDeadError
        return whole(self, *arguments, **options)

    LLM.generate = generate
    return trainer_main(path)


def with_an_engine_that_keeps_its_first_adapter(path: str) -> int:
    serve = Engine.serve_adapter

    def serve_once(self: Engine, number: int, folder: Path) -> None:
        if number == 1:
            serve(self, number, folder)

    Engine.serve_adapter = serve_once
    return trainer_main(path)
