"""The fast path's gradient beside TRL's on a GPU, on one live batch of each kind: `python -m bench._cuda_equality`.

Prints a line for each case and exits with 1 where an error is larger than its precision explains.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from bench._passes import Bench, Shape, open_bench

SHAPE = Shape(prompt=200, completion=60, group=8, prompts=4, silent=1, rollouts_per_pass=8, corrects=False)
SHAPES = {
    "no correction": SHAPE,
    "vLLM's correction": replace(SHAPE, corrects=True),
    "long completions": replace(SHAPE, prompt=64, completion=700),
}
LARGEST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 5e-2}


def main() -> None:
    largest = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SHAPES.items():
            for dtype, limit in LARGEST_ERROR.items():
                on_cuda = torch.cuda.is_available()
                error = _error(open_bench(shape, Path(folder), size="small", fast=True, on_cuda=on_cuda, dtype=dtype))
                print(f"{name}, {dtype}: relative error {error:.1e} (at most {limit:.0e})")
                largest = max(largest, error / limit)
    sys.exit(largest > 1)


def _error(bench: Bench) -> float:
    bench.trainer._audit_every = 1
    bench.passes()
    errors: list[float] = bench.trainer._metrics["train"]["fast/grad_relative_error"]
    return errors[-1]


if __name__ == "__main__":
    main()
