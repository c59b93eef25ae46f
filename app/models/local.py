"""Models on the operator's disk: registered by name in `PODIUM_MODELS`, checked, and identified by their bytes."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from core.errors import ModelNotAllowed

REQUIRED = ("config.json", "tokenizer.json")
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
CONFIGS = ("config.json", "tokenizer_config.json")
"""Files in which `auto_map` asks for Python code of the repository's own."""

SAMPLES = 64
SAMPLE_BYTES = 64 * 1024

_Print = tuple[tuple[str, int, int], ...]
"""(path, size, mtime in ns) of every file that counts."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    name: str
    folder: Path
    revision: str
    """64 hex digits; see `_digest`."""
    created_at: int
    """Unix seconds at which config.json was written."""


def read_local_model(name: str, folder: Path) -> LocalModel:
    """The model in `folder`; raises `ModelNotAllowed` when its files cannot be used safely or at all."""
    for file in REQUIRED:
        if not (folder / file).is_file():
            raise _refused(name, f"its folder has no {file}", "Ask the operator to complete the folder.")
    weights = _weights(name, folder)
    for file in CONFIGS:
        if wants_custom_code(_read_json(name, folder / file)):
            raise custom_code_refused(name, file)
    texts = sorted([*folder.glob("*.json"), *folder.glob("*.jinja")])
    counted = tuple(_print(texts + weights))
    created_at = int((folder / "config.json").stat().st_mtime)
    return LocalModel(name, folder, _digest(counted, len(texts)), created_at)


def wants_custom_code(config: Any) -> bool:
    """Whether loading would run Python code that comes with the weights."""
    return isinstance(config, dict) and bool(config.get("auto_map"))


def custom_code_refused(name: str, file: str) -> ModelNotAllowed:
    why = f"its {file} asks for custom code (`auto_map`), which is never run here"
    return _refused(name, why, "Use a model whose architecture is part of transformers.")


def only_pickles_refused(name: str) -> ModelNotAllowed:
    why = "its weights are pickles, which can run code when they are loaded"
    return _refused(name, why, "Convert the weights to safetensors: `model.save_pretrained(folder)`.")


def no_weights_refused(name: str) -> ModelNotAllowed:
    return _refused(name, "it has no *.safetensors weights", "Use a repository with safetensors weights.")


def _refused(name: str, why: str, fix: str) -> ModelNotAllowed:
    return ModelNotAllowed(f"The model {name!r} cannot be used: {why}.", param="model", fix=fix)


def _weights(name: str, folder: Path) -> list[Path]:
    """The weight files; every shard that an index names must be there."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        has_pickles = any(path.suffix in PICKLES for path in folder.iterdir())
        raise only_pickles_refused(name) if has_pickles else no_weights_refused(name)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(_read_json(name, index).get("weight_map", {}).values())
        if missing := sorted(shards - {path.name for path in weights}):
            raise _refused(name, f"the weight file {missing[0]} is missing", "Ask the operator to complete the folder.")
    return weights


def _read_json(name: str, path: Path) -> dict[str, Any]:
    """Empty for a file that is not there."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _refused(name, f"its {path.name} is not a JSON object", "Ask the operator to repair the folder.")
    return value


def _print(paths: list[Path]) -> Iterator[tuple[str, int, int]]:
    for path in paths:
        stat = path.stat()
        yield str(path), stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=64)
def _digest(counted: _Print, whole: int) -> str:
    """SHA-256 over names, sizes and bytes: of the first `whole` files all bytes, of each weight file 64 blocks of
    64 KiB spread evenly, the first and the last included.

    Training changes weights everywhere, so this tells two models apart at the cost of 4 MiB a file, not of 16 GB.
    It is an identity, not a seal: who can write to the operator's disk can also forge it.
    """
    digest = hashlib.sha256()
    for number, (path, size, _) in enumerate(counted):
        digest.update(f"{Path(path).name} {size}\n".encode())
        blocks = _spread_blocks(Path(path), size) if number >= whole else iter((Path(path).read_bytes(),))
        for block in blocks:
            digest.update(block)
    return digest.hexdigest()


def _spread_blocks(path: Path, size: int) -> Iterator[bytes]:
    stride = max(SAMPLE_BYTES, (size - SAMPLE_BYTES) // (SAMPLES - 1))
    with path.open("rb") as file:
        for start in range(0, size, stride):
            file.seek(start)
            yield file.read(SAMPLE_BYTES)
        file.seek(max(0, size - SAMPLE_BYTES))
        yield file.read(SAMPLE_BYTES)
