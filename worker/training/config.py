"""A job spec in TRL's and PEFT's own numbers. Pure; every default that would change the run is written out.

What TRL 1.16 would otherwise choose silently: bf16 on any device, gradient checkpointing on, a linear schedule, a log
line every 10 steps, NaN losses replaced by the running mean, checkpoints of its own, and (a reference model for KL)
the newest revision of the base instead of the pinned one.
"""

from pathlib import Path
from typing import Any

from peft import LoraConfig
from trl import GRPOConfig

from core.spec import AdapterMethod, Hyperparameters, JobSpec, LossType, ModelSource
from worker.training.environment import Device

MOST_ROLLOUTS_PER_PASS = {"cpu": 64, "cuda": 16}
"""Micro-batch where the spec leaves it to us: speed on a CPU, memory on a GPU."""
CISPO_EPSILON_HIGH = 5.0
"""ScaleRL's value. TRL falls back to `epsilon`, which would scale the whole loss by 0.2."""


def grpo_config(spec: JobSpec, device: Device, output_dir: Path) -> GRPOConfig:
    """TRL would start an engine of its own: ours is given to the trainer (`worker.training.vllm`)."""
    return GRPOConfig(output_dir=str(output_dir), **grpo_arguments(spec, device) | {"use_vllm": False})


def lora_config(spec: JobSpec) -> LoraConfig | None:
    arguments = lora_arguments(spec)
    return LoraConfig(**arguments) if arguments else None


def resolved_parameters(spec: JobSpec, device: Device) -> dict[str, Any]:
    """What `results.json` reports; JSON values, nothing of this machine's paths."""
    return {"grpo": grpo_arguments(spec, device), "lora": lora_arguments(spec)}


def grpo_arguments(spec: JobSpec, device: Device) -> dict[str, Any]:
    return {
        **_batch_arguments(spec.hyperparameters, spec.resources.gpus, device),
        **_objective_arguments(spec),
        **_optimizer_arguments(spec),
        **_generation_arguments(spec),
        **_device_arguments(spec, device),
        **_bookkeeping_arguments(),
    }


def lora_arguments(spec: JobSpec) -> dict[str, Any] | None:
    """None for full training."""
    adapter = spec.adapter
    if adapter.method is AdapterMethod.FULL:
        return None
    modules = adapter.target_modules
    return {
        "r": adapter.r,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": modules if isinstance(modules, str) else list(modules),
        "bias": "none",
        "task_type": "CAUSAL_LM",
        "revision": hub_revision(spec),
    }


def rollouts_per_pass(hyperparameters: Hyperparameters, processes: int, device: Device) -> int:
    """Rollouts in one forward and backward pass of one process; divides what a step gives each of them."""
    if hyperparameters.rollouts_per_pass is not None:
        return hyperparameters.rollouts_per_pass
    rollouts = hyperparameters.rollouts_per_step // processes
    most = MOST_ROLLOUTS_PER_PASS[device.kind]
    return max(size for size in range(1, min(most, rollouts) + 1) if rollouts % size == 0)


def hub_revision(spec: JobSpec) -> str | None:
    """The commit to load from the Hub; a local model's "revision" is a digest that no Hub knows."""
    return spec.model.revision if spec.model.source is ModelSource.HUB else None


def _batch_arguments(hyperparameters: Hyperparameters, processes: int, device: Device) -> dict[str, Any]:
    """One generation batch holds the rollouts of one optimizer step: on-policy unless `num_iterations` says more."""
    size = rollouts_per_pass(hyperparameters, processes, device)
    passes = hyperparameters.rollouts_per_step // processes // size
    return {
        "num_generations": hyperparameters.num_generations,
        "per_device_train_batch_size": size,
        "gradient_accumulation_steps": passes,
        "steps_per_generation": passes,
        "num_iterations": hyperparameters.num_iterations,
    }


def _objective_arguments(spec: JobSpec) -> dict[str, Any]:
    wanted = spec.hyperparameters
    epsilon_high = wanted.epsilon_high
    if epsilon_high is None and wanted.loss_type is LossType.CISPO:
        epsilon_high = CISPO_EPSILON_HIGH
    return {
        "loss_type": wanted.loss_type.value,
        "importance_sampling_level": "sequence" if wanted.loss_type is LossType.LUSPO else "token",
        "scale_rewards": wanted.scale_rewards,
        "reward_weights": [term.weight for term in spec.rewards],
        "multi_objective_aggregation": "sum_then_normalize",
        "beta": wanted.beta,
        "epsilon": wanted.epsilon,
        "epsilon_high": epsilon_high,
        "mask_truncated_completions": wanted.mask_truncated_completions,
    }


def _optimizer_arguments(spec: JobSpec) -> dict[str, Any]:
    wanted = spec.hyperparameters
    return {
        "max_steps": spec.max_steps,
        "learning_rate": spec.learning_rate,
        "lr_scheduler_type": wanted.lr_scheduler_type,
        "warmup_steps": wanted.warmup_steps,
        "optim": "adamw_torch_fused",
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": wanted.weight_decay,
        "max_grad_norm": wanted.max_grad_norm,
        "seed": spec.seed,
        "shuffle_dataset": True,
    }


def _generation_arguments(spec: JobSpec) -> dict[str, Any]:
    wanted = spec.hyperparameters
    arguments: dict[str, Any] = {
        "max_completion_length": wanted.max_completion_length,
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "top_k": 0,
        "repetition_penalty": 1.0,
        "chat_template_kwargs": dict(spec.chat_template_kwargs),
        "use_vllm": wanted.use_vllm,
    }
    if wanted.use_vllm and wanted.loss_type is LossType.VESPO:
        arguments["vllm_importance_sampling_mode"] = "token_truncate"
    return arguments


def _device_arguments(spec: JobSpec, device: Device) -> dict[str, Any]:
    return {
        "use_cpu": not device.is_cuda,
        "bf16": device.bf16,
        "fp16": False,
        "gradient_checkpointing": spec.hyperparameters.gradient_checkpointing,
        "model_init_kwargs": reference_arguments(spec),
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device.is_cuda,
        **_team_arguments(spec),
    }


def _team_arguments(spec: JobSpec) -> dict[str, Any]:
    """Every trained parameter takes part in each pass, so there is nothing to look for."""
    return {"ddp_find_unused_parameters": False} if spec.resources.gpus > 1 else {}


def reference_arguments(spec: JobSpec) -> dict[str, Any] | None:
    """How TRL loads the frozen copy of a fully trained model for the KL term: as we loaded the policy."""
    needed = spec.adapter.method is AdapterMethod.FULL and spec.hyperparameters.beta > 0
    if not needed:
        return None
    pinned = {"revision": hub_revision(spec)} if hub_revision(spec) else {}
    return {"use_safetensors": True, "trust_remote_code": False, **pinned}


def _bookkeeping_arguments() -> dict[str, Any]:
    """Metrics, checkpoints and evaluations are ours (`callbacks`); TRL only reports every step."""
    return {
        "logging_steps": 1,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "log_level": "warning",
        "save_strategy": "no",
        "eval_strategy": "no",
        "remove_unused_columns": False,
    }
