#!/usr/bin/env bash
# The trainer's fast path on a machine with one NVIDIA GPU and no network, in less than 8 minutes:
#   bench/gpu_check.sh [OUTPUT_DIR]
# Equality with TRL on CUDA, then the table for a small model and for one of Qwen3-1.7B's shape, random weights in bf16.
# Results are JSON files in OUTPUT_DIR (default: $OUT, else ./gpu_check). Needs the `worker` and `dev` extras.
set -euo pipefail
cd "$(dirname "$0")/.."

out="${1:-${OUT:-gpu_check}}"
python="${PYTHON:-.venv/bin/python}"
mkdir -p "$out"
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"

"$python" -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.cuda.get_device_name())'

echo "== gradients"
timeout 150 "$python" -m bench._cuda_equality | tee "$out/equality.txt"

echo "== small model"
timeout 120 "$python" -m bench.trainer --device cuda --model small --rounds 2 --json > "$out/small.json"

echo "== Qwen3-1.7B's shape"
timeout 200 "$python" -m bench.trainer --device cuda --model qwen3-1.7b --quick --json > "$out/qwen3-1.7b.json"

"$python" - "$out" <<'PY'
import json, pathlib, sys

for path in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
    print(path.stem)
    for row in json.loads(path.read_text())["rows"]:
        print("  ", {name: row[name] for name in ("case", "passes_ratio", "step_ratio", "floor_ratio", "memory_ratio", "met")})
PY
