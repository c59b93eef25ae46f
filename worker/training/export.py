"""What was trained, as files that load anywhere: the PEFT adapter or the whole model, tokenizer, model card."""

import json
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers.tokenization_utils_base import PreTrainedTokenizerBase

from core.spec import JobSpec
from worker.training.card import model_card
from worker.training.config import hub_revision

ADAPTER_CONFIG = "adapter_config.json"


def name_base(model: Any, spec: JobSpec) -> None:
    """Let the adapter say where anybody finds its base: the Hub id and commit, or the registered name.

    PEFT wrote down where this process loaded it from, which for a local model is a path of this machine.
    """
    if isinstance(model, PeftModel):
        model.active_peft_config.base_model_name_or_path = spec.model.name
        model.active_peft_config.revision = hub_revision(spec)


def export_result(
    model: Any, tokenizer: PreTrainedTokenizerBase, spec: JobSpec, folder: Path, *, final_step: int
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_policy(model, folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(model_card(spec, final_step), encoding="utf-8")


def save_policy(model: Any, folder: Path) -> None:
    """Safetensors and configuration. Embeddings are never trained, and PEFT would ask the Hub whether they were."""
    if isinstance(model, PeftModel):
        model.save_pretrained(folder, save_embedding_layers=False)
        (folder / "README.md").unlink()
        _put_in_order(folder / ADAPTER_CONFIG)
    else:
        _save_model(model, folder)


def _save_model(model: Any, folder: Path) -> None:
    """`Trainer` switches the cache off for training; nobody wants to generate without it."""
    training_choice, model.config.use_cache = model.config.use_cache, True
    try:
        model.save_pretrained(folder)
    finally:
        model.config.use_cache = training_choice


def _put_in_order(path: Path) -> None:
    """PEFT writes sets in the order of this process's hashes; the same adapter should be the same bytes."""
    config = json.loads(path.read_bytes())
    ordered = {key: sorted(value) if isinstance(value, list) else value for key, value in sorted(config.items())}
    path.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")
