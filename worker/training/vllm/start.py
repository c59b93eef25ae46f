"""A sampler for a trainer: what is served how, in how much memory, and watched by a canary."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from peft import PeftModel

from core.spec import AdapterMethod, JobSpec
from worker.run_directory import RunDirectory
from worker.training.config import hub_revision
from worker.training.environment import Device
from worker.training.evaluate import untouched_training
from worker.training.fast_path.scoring import causal_of
from worker.training.phases import PhaseTimer
from worker.training.vllm.canary import COMPLETION_TOKENS, Canary, Scorer, Texts
from worker.training.vllm.memory import estimate_needs, plan_memory
from worker.training.vllm.native import AdapterFolder, obstacle, room_for
from worker.training.vllm.sampler import ColocatedSampler, Serving
from worker.training.vllm.seeds import RequestSeeds
from worker.training.vllm.weights import require_mergeable


def open_sampler(
    trainer: Any,
    run: RunDirectory,
    spec: JobSpec,
    prompts: Sequence[Sequence[int]],
    evaluated_tokens: int,
    phases: PhaseTimer,
    device: Device,
) -> ColocatedSampler:
    """Starts the engine, which takes a while.

    `prompts`: the training prompts' token ids. `evaluated_tokens`: at once, by an evaluation.

    Raises `SamplerCannotMerge`, `SamplerDoesNotFit`, `SamplerFailed`.
    """
    from worker.training.vllm.engine import Engine, EngineSettings  # noqa: PLC0415 - only where vLLM is installed

    model, wanted = trainer.model, spec.hyperparameters
    merges = obstacle(model, spec)
    if merges is not None:
        require_mergeable(model)
    tokens = _most_tokens(model, prompts, wanted.max_completion_length)
    memory, sleeps = _memory(model, spec, device, tokens, evaluated_tokens)
    with untouched_training(model, device):
        engine = Engine(
            EngineSettings(
                model=causal_of(model).name_or_path,
                revision=hub_revision(spec),
                dtype=device.compute_dtype,
                memory=memory,
                sleeps=sleeps,
                tokens=tokens,
                requests=wanted.rollouts_per_step,
                seed=spec.seed,
                is_cuda=device.is_cuda,
                adapter=room_for(model, spec.adapter.r) if merges is None else None,
            )
        )
        if sleeps:
            engine.sleep()  # the baseline comes first
    return ColocatedSampler(
        model,
        engine,
        Serving(
            dtype=device.compute_dtype,
            sleeps=sleeps,
            share=memory.get("gpu_memory_utilization"),
            adapters=AdapterFolder(run.path / ".adapters") if merges is None else None,
            trains_everything=spec.adapter.method is AdapterMethod.FULL,
            has_the_base=spec.adapter.method is AdapterMethod.LORA,
            merges=merges,
        ),
        canary=_canary(model, prompts, device),
        score=scorer(model, device),
        seeds=RequestSeeds(spec.seed),
        drawing=_drawing(trainer),
        step=lambda: trainer.state.global_step,
        phases=phases,
    )


def scorer(model: Any, device: Device, *, with_adapter: bool = True) -> Scorer:
    """The trainer's own log-probabilities, as its passes compute them, without dropout; nothing of training changes."""

    def score(texts: Texts) -> torch.Tensor:
        bare = nullcontext() if with_adapter else model.disable_adapter()
        with untouched_training(model, device), bare, device.autocast():
            return torch.cat([_score_one(model, text) for text in texts])

    return score


def _canary(model: Any, prompts: Sequence[Sequence[int]], device: Device) -> Canary:
    score_base = scorer(model, device, with_adapter=False) if isinstance(model, PeftModel) else None
    return Canary(prompts, device.compute_dtype, score_base=score_base)


def _score_one(model: Any, text: list[int]) -> torch.Tensor:
    ids = torch.tensor([text], device=model.device)
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
    logps: torch.Tensor = logits.float().log_softmax(dim=-1).gather(1, ids[0, 1:, None])
    return logps[:, 0].double().cpu()


def _most_tokens(model: Any, prompts: Sequence[Sequence[int]], completion: int) -> int:
    """Room for the canary's texts too. A context that is shorter than that is the limit."""
    longest = max(map(len, prompts)) + max(completion, COMPLETION_TOKENS + 1)
    context = getattr(causal_of(model).config.get_text_config(), "max_position_embeddings", None)
    return min(longest, context or longest)


def _memory(
    model: Any, spec: JobSpec, device: Device, tokens: int, evaluated: int
) -> tuple[dict[str, float | int], bool]:
    total = torch.cuda.mem_get_info()[1] if device.is_cuda else 0
    needs = estimate_needs(model, spec, device, total=total, tokens=tokens, evaluated=evaluated)
    if not device.is_cuda:
        return {"kv_cache_memory_bytes": max(2**28, needs.all_rollouts)}, False
    plan = plan_memory(needs, share=spec.hyperparameters.vllm_memory_share)
    return {"gpu_memory_utilization": plan.share}, plan.sleeps


def _drawing(trainer: Any) -> dict[str, Any]:
    return {
        "temperature": trainer.temperature,
        "top_p": trainer.top_p,
        "top_k": trainer.top_k,
        "min_p": trainer.min_p or 0.0,
        "repetition_penalty": trainer.repetition_penalty,
        "max_tokens": trainer.max_completion_length,
        "stop_token_ids": list(trainer.eos_token_ids),
    }
