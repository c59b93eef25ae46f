"""Model folders that are right in form: what the ledger looks at, without weights that could be trained."""

import json
import struct
from pathlib import Path
from typing import Any


def write_model(folder: Path, *, weights: bytes = bytes(range(64)), **config: Any) -> Path:
    """A folder with config.json, tokenizer.json and one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", **config}))
    (folder / "tokenizer.json").write_text("{}")
    write_safetensors(folder / "model.safetensors", weights)
    return folder


def write_safetensors(path: Path, data: bytes) -> None:
    """One tensor of bytes, in the format's layout: header length, header, data."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(data)], "data_offsets": [0, len(data)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
