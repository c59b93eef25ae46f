"""The moment after a step: what the next step changes before its update, and a checkpoint of this one must not show.

Weights and optimizer stay as they are until that update. Random states, the rollouts at hand and all that is counted
do not.
"""

import copy
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import TrainerState

from worker.training.progress import Progress
from worker.training.trainer import PodiumTrainer, RolloutBuffer


@dataclass(frozen=True, slots=True)
class Moment:
    state: TrainerState
    progress: Progress
    buffer: RolloutBuffer
    python: Any
    numpy: Any
    torch_cpu: torch.Tensor
    torch_cuda: list[torch.Tensor]

    @classmethod
    def now(cls, trainer: PodiumTrainer, progress: Progress) -> "Moment":
        return cls(
            state=copy.deepcopy(trainer.state),
            progress=progress.model_copy(deep=True),
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
