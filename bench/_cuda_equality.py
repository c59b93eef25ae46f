"""The fast path's gradient beside TRL's on a GPU, on one live batch of each kind: `python -m bench._cuda_equality`.

Prints a line for each case and exits with 1 where an error is larger than its precision explains.
"""

import sys
import tempfile
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import torch

from bench._passes import Shape, open_bench

SHAPE = Shape(prompt=200, completion=60, group=8, prompts=4, silent=1, rollouts_per_pass=8, corrects=False)
SHAPES = {
    "no correction": SHAPE,
    "vLLM's correction": replace(SHAPE, corrects=True),
    "long completions": replace(SHAPE, prompt=64, completion=700),
}


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    dtype: torch.dtype
    largest_error: float
    in_four_bits: bool = False


KINDS = [Kind("fp32", torch.float32, 1e-4), Kind("bf16", torch.bfloat16, 5e-2)]
NF4 = Kind("bf16, base in NF4", torch.bfloat16, 5e-2, in_four_bits=True)


def main() -> None:
    kinds = [*KINDS, NF4] if find_spec("bitsandbytes") else KINDS
    if NF4 not in kinds:
        print("bitsandbytes is not installed: QLoRA is not compared")
    is_right = True
    with tempfile.TemporaryDirectory() as folder:
        for (name, shape), kind in product(SHAPES.items(), kinds):
            error = _error(shape, kind, Path(folder))
            print(f"{name}, {kind.name}: relative error {error:.1e} (at most {kind.largest_error:.0e})")
            is_right &= error <= kind.largest_error
    sys.exit(not is_right)


def _error(shape: Shape, kind: Kind, folder: Path) -> float:
    bench = open_bench(
        shape,
        folder,
        size="small",
        fast=True,
        on_cuda=torch.cuda.is_available(),
        dtype=kind.dtype,
        in_four_bits=kind.in_four_bits,
    )
    bench.trainer._audit_every = 1
    bench.passes()
    errors: list[float] = bench.trainer._metrics["train"]["fast/grad_relative_error"]
    return errors[-1]


if __name__ == "__main__":
    main()
