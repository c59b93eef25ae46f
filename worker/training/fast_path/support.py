"""When each saving is exact; where it is not, it is off, and says why."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any

from accelerate import DistributedType
from torch import nn
from trl import GRPOTrainer
from trl.trainer import utils as trl_utils

from worker.training.fast_path.scoring import causal_of

_RELIED_ON: tuple[Callable[..., Any], ...] = (
    GRPOTrainer._prepare_inputs,
    GRPOTrainer._generate_and_score_completions,
    GRPOTrainer._get_per_token_logps_and_entropies,
    GRPOTrainer._compute_loss,
    trl_utils.add_fused_lm_head,
    trl_utils.shuffle_sequence_dict,
    trl_utils.split_tensor_dict,
)
KNOWN_SOURCES = frozenset({"44fee22fa419a6a2029f7430936e17df1ebf400e36f8dac465e6a75e4c1c22ac"})
"""Digests of the parts of TRL that the savings are exact for: those of 1.16.0."""
UNKNOWN_TRL = "this version of TRL is not the one that the fast path was proved against"
_LOSS_TYPES = frozenset({"grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"})
_ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
"""Rotary positions whose attention depends on the distance alone, however wide the batch is padded."""


_TOGETHER = frozenset({DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU})
"""One process, or several with a whole model each (DDP)."""


class Saving(StrEnum):
    EQUAL_REWARDS = "equal_rewards"
    """A group of equal rewards has no advantage; TRL's rounding may give it one."""
    SILENT_ROLLOUTS = "silent_rollouts"
    """Rollouts without advantage are computed by nobody."""
    CORRECTION = "correction"
    """The correction of vLLM's samples needs no pass of its own."""
    SHARED_PROMPTS = "shared_prompts"
    """A prompt is computed once for its group, and padding not at all."""


def obstacles(trainer: Any) -> dict[Saving, str]:
    """Why a saving would change what is computed; the others are exact."""
    everything = next(_obstacles_to_all(trainer), None)
    if everything is not None:
        return dict.fromkeys(Saving, everything)
    found = {
        Saving.EQUAL_REWARDS: next(_obstacles_to_equality(trainer), None),
        Saving.SILENT_ROLLOUTS: next(_obstacles_to_leaving_out(trainer), None),
        Saving.CORRECTION: next(_obstacles_to_dropping_the_pass(trainer), None),
        Saving.SHARED_PROMPTS: next(_obstacles_to_sharing(trainer), None),
    }
    return {saving: reason for saving, reason in found.items() if reason is not None}


@cache
def source_digest() -> str | None:
    """Of what is relied on. None where Python has the code without its source."""
    try:
        text = "".join(inspect.getsource(part) for part in _RELIED_ON)
    except OSError:
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def _obstacles_to_all(trainer: Any) -> Iterator[str]:
    if source_digest() not in KNOWN_SOURCES:
        yield UNKNOWN_TRL
    if trainer.accelerator.distributed_type not in _TOGETHER:
        yield "the processes share the model's weights out"
    if trainer.loss_type not in _LOSS_TYPES:
        yield f"the loss type `{trainer.loss_type}` is unknown"


def _obstacles_to_equality(trainer: Any) -> Iterator[str]:
    if trainer.multi_objective_aggregation != "sum_then_normalize":
        yield "rewards are normalised one by one"


def _obstacles_to_leaving_out(trainer: Any) -> Iterator[str]:
    if not _reads_text_only(trainer.model):
        yield "the model reads more than text"
    if trainer.beta != 0:
        yield "beta is not 0: the KL term needs every rollout"
    if trainer._entropy_bonus_enabled or trainer.top_entropy_quantile < 1:
        yield "an entropy term needs every rollout"
    if trainer.aux_loss_enabled:
        yield "the router's balancing loss needs every rollout"


def _obstacles_to_dropping_the_pass(trainer: Any) -> Iterator[str]:
    if trainer.use_vllm and has_dropout(trainer.model):
        yield "dropout makes the two passes differ"


def _obstacles_to_sharing(trainer: Any) -> Iterator[str]:
    config = causal_of(trainer.model).config
    if not _reads_text_only(trainer.model):
        yield "the model reads more than text"
    if trainer.aux_loss_enabled:
        yield "the router's balancing loss counts each prompt as often as TRL computes it"
    if has_dropout(trainer.model):
        yield "dropout would be drawn once for the whole group"
    if config._attn_implementation != "sdpa":
        yield f"the attention `{config._attn_implementation}` takes no mask of ours"
    if not _has_relative_positions(config):
        yield "the model's positions depend on the padding"
    if not _sees_everything(config):
        yield "not every layer attends to the whole text"


def has_dropout(model: nn.Module) -> bool:
    config = causal_of(model).config.get_text_config()
    is_dropping = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    return is_dropping or bool(getattr(config, "attention_dropout", 0))


def _reads_text_only(model: nn.Module) -> bool:
    config = causal_of(model).config
    return config is config.get_text_config()


def _has_relative_positions(config: Any) -> bool:
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, Mapping) or not parameters:
        return False
    each = [value for value in parameters.values() if isinstance(value, Mapping)] or [parameters]
    return all(one.get("rope_type", "default") in _ROPE_TYPES for one in each)


def _sees_everything(config: Any) -> bool:
    layers = getattr(config, "layer_types", None)
    if layers is None:
        return getattr(config, "sliding_window", None) is None
    return set(layers) == {"full_attention"}
