"""vLLM in the trainer's own process. The one file that imports it; whatever it raises is named here."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from trl.trainer.utils import ensure_master_addr_port
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

from worker.training.failures import RunFailed, SamplerDoesNotFit, SamplerFailed, first_line
from worker.training.vllm.native import AdapterRoom
from worker.training.vllm.sampler import Answers

MOST_AT_ONCE = 256
"""Requests; more wait in vLLM's queue."""
_WORDS_OF_MEMORY = ("memory", "KV cache")
"""In what vLLM raises at its start when the GPU is too full; it has no class of its own for that."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    model: str
    """Folder or Hub id of the base, in safetensors."""
    revision: str | None
    dtype: torch.dtype
    memory: Mapping[str, float | int]
    """`gpu_memory_utilization`, or on a CPU `kv_cache_memory_bytes`."""
    sleeps: bool
    tokens: int
    """Of a prompt and its completion, at most."""
    requests: int
    """At once, at most."""
    seed: int
    is_cuda: bool
    adapter: AdapterRoom | None
    """None: none is served."""


class Engine:
    """Raises `SamplerFailed`, or torch's out-of-memory error, from everywhere; `SamplerDoesNotFit` when it starts."""

    def __init__(self, settings: EngineSettings) -> None:
        _prepare_environment()
        self._sleep_level = 1 if settings.adapter else 2
        """1 keeps the weights in the host's memory: an adapter's base is in no other place than the engine. With 2
        they are gone, and each wake is followed by a push (vLLM's own reload would bring back the base from disk)."""
        self._adapter: LoRARequest | None = None
        self._devices = [torch.cuda.current_device()] if settings.is_cuda else []
        with _named("starting"):
            self._llm = _start(settings)
        self.is_asleep = False

    @property
    def forgets(self) -> bool:
        """Whether sleep costs it its weights."""
        return self._sleep_level == 2

    def load(self, weights: Iterable[tuple[str, torch.Tensor]], *, all_of_them: bool) -> None:
        """Each (name in the checkpoint, tensor) is read once, and may go as soon as the next is asked for."""

        def push(model: Any) -> set[str]:
            loaded = model.load_weights(iter(weights))
            return {name for name, _ in model.named_parameters()} - set(loaded or ()) if all_of_them else set()

        with _named("loading weights"):
            missing = set().union(*self._llm.apply_model(push))
        if missing:
            raise SamplerFailed(f"{len(missing)} tensors of the engine got no weights from us, first {min(missing)}.")

    def serve_adapter(self, number: int, folder: Path) -> None:
        """From now on. `number`: one that was never used before in this engine."""
        self._adapter = LoRARequest(f"adapter-{number}", number, str(folder))

    def forget_cached_prompts(self) -> None:
        """They were computed by the weights before."""
        with _named("resetting its prefix cache"):
            if not self._llm.reset_prefix_cache():
                raise SamplerFailed("vLLM did not reset its prefix cache.")

    def sample(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], drawing: Mapping[str, Any]) -> Answers:
        """One completion per prompt, each by its own seed. `drawing`: arguments of `SamplingParams`."""
        asked = [_request(**drawing, n=1, logprobs=0, seed=seed) for seed in seeds]
        completions = [output.outputs[0] for output in self._generate(prompts, asked)]
        return Answers(
            token_ids=[list(one.token_ids) for one in completions],
            logps=[[_number(place[token].logprob) for token, place in _places(one)] for one in completions],
        )

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Greedily, with exactly so many tokens: no random number is drawn."""
        asked = _request(temperature=0, max_tokens=tokens, ignore_eos=True)
        return [list(output.outputs[0].token_ids) for output in self._generate(prompts, asked)]

    def score(self, texts: Sequence[Sequence[int]]) -> torch.Tensor:
        """(tokens,), float64: log-probability of every token but the first of each text, at temperature 1."""
        asked = _request(temperature=0, max_tokens=1, prompt_logprobs=0)
        scores = [
            place[token].logprob
            for text, output in zip(texts, self._generate(texts, asked), strict=True)
            for token, place in zip(text[1:], output.prompt_logprobs[1:], strict=True)
        ]
        return torch.tensor(scores, dtype=torch.float64)

    def sleep(self) -> None:
        with _named("going to sleep"):
            self._llm.sleep(level=self._sleep_level)
        self.is_asleep = True

    def wake_weights(self) -> None:
        """Their memory; what is in it is up to `forgets`."""
        torch.cuda.empty_cache()
        with _named("waking up"):
            self._llm.wake_up(tags=["weights"])

    def wake_cache(self) -> None:
        with _named("waking up"):
            self._llm.wake_up(tags=["kv_cache"])
        self.is_asleep = False

    def _generate(self, prompts: Sequence[Sequence[int]], asked: Any) -> list[Any]:
        wrapped = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        with _named("generating"), torch.random.fork_rng(self._devices):  # it draws beside the seeds
            outputs = self._llm.generate(wrapped, sampling_params=asked, lora_request=self._adapter, use_tqdm=False)
        if len(outputs) != len(prompts):
            raise SamplerFailed(f"vLLM answered {len(outputs)} of {len(prompts)} requests.")
        return list(outputs)


def _start(settings: EngineSettings) -> LLM:
    """What a job's numbers or safety depend on is said here, and not left to vLLM's defaults or the model's files."""
    adapters: dict[str, Any] = {}
    if settings.adapter is not None:
        adapters = {
            "enable_lora": True,
            "max_lora_rank": settings.adapter.rank,
            "lora_target_modules": list(settings.adapter.layers),
            "max_loras": 1,
            "max_cpu_loras": 1,
        }
    try:
        return LLM(
            model=settings.model,
            revision=settings.revision,
            dtype=str(settings.dtype).removeprefix("torch."),
            load_format="safetensors",
            trust_remote_code=False,
            skip_tokenizer_init=True,
            generation_config="vllm",
            seed=settings.seed,
            max_model_len=settings.tokens,
            max_num_seqs=min(settings.requests, MOST_AT_ONCE),
            max_num_batched_tokens=4096,
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enable_sleep_mode=settings.sleeps,
            enforce_eager=not settings.is_cuda,
            distributed_executor_backend="external_launcher",
            disable_log_stats=True,
            **settings.memory,
            **adapters,
        )
    except (ValueError, RuntimeError) as error:
        if any(word in str(error) for word in _WORDS_OF_MEMORY) and not isinstance(error, torch.OutOfMemoryError):
            raise SamplerDoesNotFit(f"vLLM could not start: {first_line(error)}") from error
        raise


def _request(**drawing: Any) -> SamplingParams:
    with _named("preparing its requests"):
        return SamplingParams(**drawing, detokenize=False)


def _prepare_environment() -> None:
    """The engine lives in this process: its weights are reached by a call, and it cannot outlive the trainer."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    ensure_master_addr_port()


@contextmanager
def _named(doing: str) -> Iterator[None]:
    try:
        yield
    except (RunFailed, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # whatever it is, the engine is what failed
        raise SamplerFailed(f"vLLM failed while {doing}: {type(error).__name__}: {first_line(error)}") from error


def _places(completion: Any) -> Iterator[tuple[int, Mapping[int, Any]]]:
    return zip(completion.token_ids, completion.logprobs, strict=True)


def _number(logp: float) -> float | None:
    return None if math.isnan(logp) else logp
