"""The moment after a step: what the next step changes before its update, and a checkpoint of this one must not show.

Weights and optimizer stay as they are until that update. Random states, the rollouts at hand and all that is counted
do not.
"""

import copy
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import send_to_device
from transformers import TrainerState

from worker.training.progress import Progress
from worker.training.trainer import PodiumTrainer, RolloutBuffer


@dataclass(frozen=True, slots=True)
class Account:
    """What the other processes of a run tell the first one after each step: all that a checkpoint needs of them."""

    random_states: dict[str, Any]
    """As transformers writes them into `rng_state_<rank>.pth`."""
    buffer: RolloutBuffer
    trained_tokens: int
    """In the step."""

    @classmethod
    def of(cls, trainer: PodiumTrainer, trained_tokens: int) -> "Account":
        states: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "cpu": torch.get_rng_state(),
        }
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state_all()
        step, batches = trainer.buffer
        return cls(states, RolloutBuffer(step, send_to_device(batches, "cpu")), trained_tokens)


@dataclass(frozen=True, slots=True)
class Moment:
    state: TrainerState
    progress: Progress
    others: Sequence[Account]
    buffer: RolloutBuffer
    python: Any
    numpy: Any
    torch_cpu: torch.Tensor
    torch_cuda: list[torch.Tensor]

    @classmethod
    def now(cls, trainer: PodiumTrainer, progress: Progress, others: Sequence[Account] = ()) -> "Moment":
        return cls(
            state=copy.deepcopy(trainer.state),
            progress=progress.model_copy(deep=True),
            others=others,
            buffer=trainer.buffer,
            python=random.getstate(),
            numpy=np.random.get_state(),
            torch_cpu=torch.get_rng_state(),
            torch_cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        )

    def bring_back(self, trainer: PodiumTrainer) -> None:
        """Put everything back as it was, so that a checkpoint can be taken. No step may follow."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)
        trainer.state = self.state
        trainer.buffer = self.buffer
