"""The moment after a step: what the making of the next rollouts changes, and a checkpoint of that step must not show.

Weights and optimizer stay as they are until the next update. Random states and TRL's count of seen tokens do not.
"""

import copy
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import TrainerState


@dataclass(frozen=True, slots=True)
class Moment:
    state: TrainerState
    python: Any
    numpy: Any
    torch_cpu: torch.Tensor
    torch_cuda: list[torch.Tensor]

    @classmethod
    def now(cls, state: TrainerState) -> "Moment":
        return cls(
            state=copy.deepcopy(state),
            python=random.getstate(),
            numpy=np.random.get_state(),
            torch_cpu=torch.get_rng_state(),
            torch_cuda=torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        )

    def bring_back(self) -> TrainerState:
        """Put the random states back as they were; the trainer's state is handed over."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)
        return self.state
