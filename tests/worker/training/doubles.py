"""Everything in double precision: what transformers and TRL compute in single precision whatever the model's type.

With it two computations of one gradient differ by 1e-15, and not by 1e-7, below which mistakes could hide.
"""

import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.models.qwen3.modeling_qwen3 as qwen3
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils


@contextmanager
def double_precision(folder: Path) -> Iterator[None]:
    """For Qwen3 and TRL's fused head."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qwen3.Qwen3RMSNorm, "forward", _norm)
        patch.setattr(qwen3.Qwen3RotaryEmbedding, "forward", torch.no_grad()(_rotary))
        patch.setattr(trl_utils, "_ChunkedLogProbFunction", _head_in_doubles(folder))
        yield


def _norm(self: Any, states: torch.Tensor) -> torch.Tensor:
    variance = states.pow(2).mean(-1, keepdim=True)
    return self.weight * (states * torch.rsqrt(variance + self.variance_epsilon))


def _rotary(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    angles = position_ids[..., None].double() * self.inv_freq.double()
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def _head_in_doubles(folder: Path) -> Any:
    """TRL's module once more, each `float32` in it read as `float64`."""
    source = inspect.getsource(chunked_logprob)
    source = source.replace("torch.float32", "torch.float64").replace(".float()", ".double()")
    path = folder / "chunked_logprob_in_doubles.py"
    path.write_text(source.replace("from ..trainer.utils", "from trl.trainer.utils"))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ChunkedLogProbFunction
