"""Two trainers with the same model and the same rollouts: TRL's passes, and the fast path's. For `bench.trainer`."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BitsAndBytesConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig

from worker.training.fast_path.trainer import FastPathTrainer

VOCABULARY = 4096
_SIZES = {
    "tiny": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 16},
    "small": {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 4, "head_dim": 48},
    "qwen3-1.7b": {
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_936,
    },
}
MODELS = tuple(_SIZES)


@dataclass(frozen=True, slots=True)
class Shape:
    """One generation batch: all prompts of one length, and all completions of another."""

    prompt: int
    completion: int
    group: int
    prompts: int
    silent: int
    """Prompts whose completions are all graded the same."""
    rollouts_per_pass: int
    corrects: bool
    """As with vLLM: its samples are corrected, for which TRL makes a pass of its own."""

    @property
    def rollouts(self) -> int:
        return self.prompts * self.group


@dataclass(frozen=True, slots=True)
class Bench:
    trainer: Any
    shape: Shape

    @property
    def operations_left(self) -> float:
        """Share of TRL's operations in the passes measured last, by the count."""
        saved: list[float] = self.trainer._metrics["train"]["fast/operations_saved"]
        return 1 - saved[-1]

    def passes(self) -> float:
        """Seconds of everything in one step between the rollouts and the optimizer."""
        trainer, shape = self.trainer, self.shape
        batch = [{"prompt": str(row // shape.group)} for row in range(shape.rollouts)]
        trainer._step, trainer._buffered_inputs = 0, None
        started_at = _now()
        for _ in range(trainer.args.gradient_accumulation_steps):
            inputs = trainer._prepare_inputs(batch)
            trainer.accelerator.backward(trainer._compute_loss(trainer.model, inputs))
            trainer._step += 1
        seconds = _now() - started_at
        trainer.model.zero_grad()
        return seconds

    def peak_bytes(self) -> int | None:
        """The most that one call of `passes` takes on top of weights; None on a CPU, where nobody counts it."""
        if not torch.cuda.is_available():
            return None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        self.passes()
        return torch.cuda.max_memory_allocated() - before

    def optimizer(self) -> float:
        trainer = self.trainer
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        started_at = _now()
        trainer.optimizer.step()
        seconds = _now() - started_at
        trainer.model.zero_grad()
        return seconds

    def generation(self) -> float:
        """Seconds to sample all completions, by transformers."""
        shape, model = self.shape, self.trainer.model
        ids = torch.stack([_prompt(row // shape.group, shape.prompt) for row in range(shape.rollouts)])
        model.eval()
        started_at = _now()
        with torch.no_grad():
            model.generate(
                input_ids=ids.to(model.device),
                attention_mask=torch.ones_like(ids).to(model.device),
                min_new_tokens=shape.completion,
                max_new_tokens=shape.completion,
                do_sample=True,
                pad_token_id=0,
            )
        seconds = _now() - started_at
        model.train()
        return seconds


def open_bench(
    shape: Shape,
    folder: Path,
    *,
    size: str,
    fast: bool,
    on_cuda: bool,
    dtype: torch.dtype | None = None,
    in_four_bits: bool = False,
) -> Bench:
    """`dtype`: of weights and passes; unset, bfloat16 on CUDA and float32 on a CPU. `in_four_bits`: the base, as QLoRA
    has it."""
    chosen = dtype or (torch.bfloat16 if on_cuda else torch.float32)
    model = _model(size, chosen, on_cuda=on_cuda)
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # it warns that `rollout_func` may change
    trainer = FastPathTrainer(
        fast_path=fast,
        model=_in_four_bits(model, folder) if in_four_bits else model,
        reward_funcs=_reward(shape),
        args=_config(shape, folder, chosen, on_cuda=on_cuda),
        train_dataset=Dataset.from_dict({"prompt": [str(number) for number in range(shape.prompts)]}),
        processing_class=_tokenizer(),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        rollout_func=_Script(shape),
    )
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.create_optimizer()
    trainer.model.train()
    if shape.corrects:
        trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, _NoEngine(), 0
    return Bench(trainer, shape)


def _model(size: str, dtype: torch.dtype, *, on_cuda: bool) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
    config = Qwen3Config(**(heads | _SIZES[size]), eos_token_id=1, pad_token_id=0, tie_word_embeddings=True)
    with torch.device("cuda" if on_cuda else "cpu"):
        model = Qwen3ForCausalLM(config)
    return model.to(dtype)


def _in_four_bits(model: Qwen3ForCausalLM, folder: Path) -> Qwen3ForCausalLM:
    """NF4 is made of weights as they are loaded, so they go through a file."""
    path, dtype, device = folder / "whole", model.dtype, model.device
    model.save_pretrained(path)
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )
    return Qwen3ForCausalLM.from_pretrained(path, dtype=dtype, quantization_config=config, device_map={"": device})


def _config(shape: Shape, folder: Path, dtype: torch.dtype, *, on_cuda: bool) -> GRPOConfig:
    passes = shape.rollouts // shape.rollouts_per_pass
    return GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=shape.rollouts_per_pass,
        gradient_accumulation_steps=passes,
        num_generations=shape.group,
        max_completion_length=shape.completion,
        use_cpu=not on_cuda,
        bf16=dtype is torch.bfloat16,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )


def _reward(shape: Shape) -> Callable[..., list[float]]:
    def reward(prompts: Sequence[str], **_: Any) -> list[float]:
        """0 and 1 in turn where a group is to teach, all 1 where not."""
        return [float(row % 2 == 0 or int(prompt) < shape.silent) for row, prompt in enumerate(prompts)]

    return reward


def _tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


class _Script:
    """TRL's `rollout_func`: token ids at random, the same for both trainers."""

    def __init__(self, shape: Shape) -> None:
        draws = torch.Generator().manual_seed(1)
        self._prompts = [_prompt(number, shape.prompt).tolist() for number in range(shape.prompts)]
        self._completions = torch.randint(3, VOCABULARY, (shape.rollouts, shape.completion), generator=draws).tolist()

    def __call__(self, texts: list[str], trainer: Any) -> dict[str, Any]:
        logps = [[-8.0] * len(completion) for completion in self._completions] if trainer.use_vllm else None
        ids = [self._prompts[int(text)] for text in texts]
        return {"prompt_ids": ids, "completion_ids": self._completions, "logprobs": logps}


class _NoEngine:
    """Where TRL expects vLLM; nothing is generated."""

    def sync_weights(self) -> None:
        return


def _prompt(number: int, length: int) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(100 + number))


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()
