"""The base model and its tokenizer, from the Hub at the pinned commit or from the operator's folder.

Safetensors only, and never code from a model repository: weights of strangers are data here, nothing else.
"""

from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import is_offline_mode
from huggingface_hub.errors import (
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from peft import PeftModel, set_peft_model_state_dict
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, PreTrainedModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from core.spec import AdapterMethod, JobSpec
from worker.run_directory import RunDirectory, RunPlan
from worker.training.config import hub_revision
from worker.training.environment import Device
from worker.training.failures import (
    BitsandbytesNotInstalled,
    HubUnreachable,
    ModelUnusable,
    ModelVanished,
    QloraNeedsCuda,
    RunFailed,
)
from worker.training.vllm.versions import require_supported_vllm

_SAFELY = {"trust_remote_code": False}
_VANISHED = (RepositoryNotFoundError, RevisionNotFoundError)
"""A gated repository is of the first kind."""
_FORBIDDEN = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError, AttributeError, SafetensorError)
"""What transformers raises for a repository that it cannot use; it has no class of its own for that."""


def check_method(spec: JobSpec, device: Device) -> None:
    """Refuse by name what this machine cannot do, before anything is downloaded."""
    if spec.adapter.method is AdapterMethod.QLORA:
        if not device.is_cuda:
            raise QloraNeedsCuda("QLoRA keeps the base in 4 bits with bitsandbytes, which needs a CUDA device.")
        if find_spec("bitsandbytes") is None:
            raise BitsandbytesNotInstalled("QLoRA needs bitsandbytes, which the trainer's environment lacks.")
    if spec.hyperparameters.use_vllm:
        require_supported_vllm()


def load_tokenizer(plan: RunPlan) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            _source(plan), padding_side="left", truncation_side="left", **_pinned(plan)
        )
    except _LOADING_ERRORS as error:
        raise _unusable(plan, "tokenizer", error) from error
    if tokenizer.eos_token_id is None:
        raise ModelUnusable(f"The tokenizer of {plan.spec.model.name} has no end-of-sequence token.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_policy(
    run: RunDirectory, plan: RunPlan, tokenizer: PreTrainedTokenizerBase, device: Device
) -> PreTrainedModel:
    """The base model, on the CPU (4-bit weights: on the GPU). Raises `ModelUnusable` unless every weight is there.

    A branch of a fully trained model begins with the weights in start/ instead; of an adapter, see `load_start`.
    """
    quantization = _four_bits(device) if plan.spec.adapter.method is AdapterMethod.QLORA else {}
    is_whole_branch = plan.spec.start_from is not None and plan.spec.adapter.method is AdapterMethod.FULL
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            run.start if is_whole_branch else _source(plan),
            dtype=weights_dtype(plan.spec, device),
            use_safetensors=True,
            output_loading_info=True,
            **quantization,
            **(_SAFELY if is_whole_branch else _pinned(plan)),
        )
    except _LOADING_ERRORS as error:
        raise _unusable(plan, "model", error) from error
    if missing := sorted(loading["missing_keys"]):
        raise ModelUnusable(f"The weights of {plan.spec.model.name} lack {len(missing)} tensors, first {missing[0]}.")
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ModelUnusable(f"The tokenizer of {plan.spec.model.name} knows more tokens than the model has embeddings.")
    return model


def load_start(model: Any, run: RunDirectory, spec: JobSpec) -> None:
    """Give a branch's new adapter the weights of the checkpoint that it begins from."""
    if spec.start_from is None or not isinstance(model, PeftModel):
        return
    weights = load_file(run.start / SAFETENSORS_WEIGHTS_NAME)
    outcome = set_peft_model_state_dict(model, weights)
    if outcome.unexpected_keys:
        message = f"The checkpoint's adapter has {len(outcome.unexpected_keys)} tensors that this one has not."
        raise ModelUnusable(message, fix="Branch with the adapter settings of the job that made the checkpoint.")


def weights_dtype(spec: JobSpec, device: Device) -> torch.dtype:
    """Frozen weights are kept in bf16; trained ones in fp32 (autocast computes in bf16), or small steps round away."""
    trained = spec.adapter.method is AdapterMethod.FULL
    return torch.float32 if trained else device.compute_dtype


def _source(plan: RunPlan) -> str | Path:
    return plan.model_path or plan.spec.model.name


def _pinned(plan: RunPlan) -> dict[str, Any]:
    revision = hub_revision(plan.spec)
    return {**_SAFELY, **({"revision": revision} if revision else {})}


def _four_bits(device: Device) -> dict[str, Any]:
    """QLoRA's NF4 with double quantisation (arXiv 2305.14314)."""
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=device.compute_dtype,
    )
    return {"quantization_config": config, "device_map": {"": torch.cuda.current_device()}}


def _unusable(plan: RunPlan, part: str, error: Exception) -> RunFailed:
    name = plan.spec.model.name
    causes = list(_causes(error))
    if any(isinstance(cause, _VANISHED) or _status(cause) in _FORBIDDEN for cause in causes):
        return ModelVanished(f"The Hub does not have {name}, or not for this worker: {_summary(error)}")
    if is_offline_mode() and any(isinstance(cause, LocalEntryNotFoundError) for cause in causes):
        return ModelVanished(f"This worker asks no Hub (HF_HUB_OFFLINE), and does not have {name} in its cache.")
    if any(isinstance(cause, LocalEntryNotFoundError) or _means_trouble(_status(cause)) for cause in causes):
        return HubUnreachable(f"The Hub did not answer while the {part} of {name} was loaded: {_summary(error)}")
    return ModelUnusable(f"The {part} of {name} cannot be loaded: {_summary(error)}")


def _status(error: BaseException) -> int | None:
    return error.response.status_code if isinstance(error, HfHubHTTPError) else None


def _means_trouble(status: int | None) -> bool:
    return status is not None and (status >= 500 or status == HTTPStatus.TOO_MANY_REQUESTS)


def _causes(error: BaseException | None) -> Any:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _summary(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
