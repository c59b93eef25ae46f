"""Trainers whose rollouts are drawn at random, by torch's own generator as samples are, and not generated."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, PrinterCallback, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

GROUP = 4
WORDS = [f"w{number}" for number in range(61)]
LONGEST = 9
LORA = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False)


@dataclass(frozen=True)
class Trained:
    parameters: dict[str, torch.Tensor]
    logs: list[dict[str, Any]] = field(repr=False)
    trainer: Any = field(repr=False)

    def distance(self, other: "Trained") -> float:
        """Largest difference of a parameter, relative to how far any has moved."""
        assert self.parameters.keys() == other.parameters.keys()
        largest = max(parameter.abs().max().item() for parameter in self.parameters.values())
        pairs = [(mine, other.parameters[name]) for name, mine in self.parameters.items()]
        return max((mine - theirs).abs().max().item() for mine, theirs in pairs) / largest


def train(kind: type[GRPOTrainer], folder: Path, *, reward: Any, **changes: Any) -> Trained:
    trainer = make_trainer(kind, folder, reward=reward, **changes)
    trainer.train()
    parameters = {name: one.detach().clone() for name, one in trainer.model.named_parameters() if one.requires_grad}
    logs = [line for line in trainer.state.log_history if "grad_norm" in line]
    return Trained(parameters, logs, trainer)


def make_trainer(
    kind: type[GRPOTrainer],
    folder: Path,
    *,
    reward: Any,
    full: bool = False,
    with_tools: bool = False,
    with_vllm: bool = False,
    generates: bool = False,
    script: Any = None,
    peft_config: LoraConfig = LORA,
    dtype: torch.dtype = torch.float64,
    trainer_arguments: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """`changes` go into the GRPOConfig. `with_vllm`: as if vLLM had sampled, by a policy a little off. `generates`: the
    model writes its rollouts after all; `script`: TRL's `rollout_func`.
    """
    arguments: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": GROUP,
        "max_completion_length": LONGEST,
        "max_steps": 6,
        "learning_rate": 1e-2,
        "weight_decay": 0.01,
        "lr_scheduler_type": "constant",
        "seed": 7,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "optim": "adamw_torch",
    }
    torch.manual_seed(5)
    trainer = kind(
        model=toy_model().to(dtype),
        reward_funcs=reward,
        args=GRPOConfig(**(arguments | changes)),
        train_dataset=prompts(),
        processing_class=toy_tokenizer(),
        peft_config=None if full else peft_config,
        rollout_func=None if generates else script or _Script(with_tools),
        **(trainer_arguments or {}),
    )
    trainer.remove_callback(PrinterCallback)
    for parameter in trainer.model.parameters():
        parameter.data = parameter.data.to(dtype)
    if with_vllm:
        trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, _NoEngine(), -1
    return trainer


def prompts() -> Dataset:
    """Of 1 to 12 words."""
    return Dataset.from_dict({"prompt": [" ".join(WORDS[: 1 + (5 * number) % 12]) for number in range(40)]})


def toy_model() -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.3,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config)


def toy_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


class _Script:
    """TRL's `rollout_func`: completions of 1 to LONGEST tokens, the longest without an end."""

    def __init__(self, with_tools: bool) -> None:
        self._with_tools = with_tools

    def __call__(self, texts: list[str], trainer: Any) -> dict[str, Any]:
        prompt_ids = [trainer.processing_class(text)["input_ids"] for text in texts]
        lengths = torch.randint(1, LONGEST + 1, (len(texts),)).tolist()
        completions = [torch.randint(3, 64, (length,)).tolist() for length in lengths]
        for completion in completions:
            if len(completion) < LONGEST:
                completion[-1] = 1
        drawn = {"prompt_ids": prompt_ids, "completion_ids": completions, "logprobs": None}
        if trainer.use_vllm:
            drawn["logprobs"] = [(-4 - torch.rand(length)).tolist() for length in lengths]
        if self._with_tools:
            drawn["env_mask"] = [[int(token % 3 > 0) for token in completion] for completion in completions]
        return drawn


class _NoEngine:
    """Where TRL expects vLLM; nothing is generated."""

    def sync_weights(self) -> None:
        return
