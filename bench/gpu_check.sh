#!/usr/bin/env bash
# The trainer's fast path on a machine with one NVIDIA GPU and no network, in less than 8 minutes:
#   bench/gpu_check.sh [OUTPUT_DIR]
# Equality with TRL on CUDA, then the table for a small model and for one of Qwen3-1.7B's shape, random weights in bf16.
# Results are in OUTPUT_DIR (default: $OUT, else ./gpu_check): each row as soon as it is measured, and a summary at the end
# whatever ran out of time or failed, which the exit code tells. Needs the `worker` and `dev` extras.
set -euo pipefail
cd "$(dirname "$0")/.."

out="${1:-${OUT:-gpu_check}}"
python="${PYTHON:-.venv/bin/python}"
mkdir -p "$out"
rm -f "$out"/failed.txt "$out"/{small,qwen3-1.7b}.jsonl  # of a run before: rows are appended
export HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0}"

"$python" -c 'import torch; assert torch.cuda.is_available(), "no CUDA device"; print(torch.cuda.get_device_name())'

failed=0

check() { # NAME SECONDS COMMAND...
  local name="$1" seconds="$2"
  shift 2
  echo "== $name"
  timeout "$seconds" "$@" && return
  echo "$name: ended with $? (124: out of time)" | tee -a "$out/failed.txt"
  failed=1
}

check gradients 150 "$python" -u -m bench._cuda_equality > >(tee "$out/equality.txt")
check "small model" 120 "$python" -m bench.trainer --device cuda --model small --rounds 2 --rows "$out/small.jsonl"
check "Qwen3-1.7B's shape" 200 \
  "$python" -m bench.trainer --device cuda --model qwen3-1.7b --quick --rows "$out/qwen3-1.7b.jsonl"

"$python" - "$out" <<'PY' | tee "$out/summary.txt"
import json, pathlib, sys

NAMES = ("case", "passes_ratio", "step_ratio", "floor_ratio", "memory_ratio", "met", "memory_met")
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jsonl")):
    print(path.stem)
    for row in map(json.loads, path.read_text().splitlines()):
        print("  ", {name: row[name] for name in NAMES})
PY
exit "$failed"
