"""The processes that train one run together, and what they say to each other beside TRL's own collectives.

Rank 0 leads: it alone grades, keeps the journal, saves, and decides what comes next. What it decides it shares, and
the others do (`worker.training.team.following`). What only they know it gathers.
"""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in its __all__

from worker.training.failures import TooFewGpus
from worker.training.team.followers import HOST

PATIENCE = timedelta(days=7)
"""Of a process that waits for another: a reward may be slow. The watchdog sees who hangs, `followers` who dies."""


@dataclass(frozen=True, slots=True)
class Team:
    rank: int = 0
    size: int = 1
    group: Any = None
    """For Python objects: gloo, whatever tensors travel by."""

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, value: Any = None) -> Any:
        """What the leader says, for everybody."""
        box = [value]
        if self.size > 1:
            dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, value: Any = None) -> list[Any]:
        """What everybody says, by rank, for the leader; nothing for the others."""
        if self.size == 1:
            return [value]
        said: list[Any] | None = [None] * self.size if self.leads else None
        dist.gather_object(value, said, dst=0, group=self.group)
        return said or []

    def own(self, count: int) -> slice:
        """Of what is the same for everybody and in the order of the ranks: this one's part, of `count`."""
        return slice(self.rank * count, (self.rank + 1) * count)


@dataclass(frozen=True, slots=True)
class GoOn:
    """Told after whatever the leader wanted between two steps: the next one comes, or what follows training."""

    training_ends: bool = False


ALONE = Team()


def lead(listener: socket.socket, size: int) -> Team:
    """The team of the process that has started the others; `listener` is where they are told to come."""
    port = listener.getsockname()[1]
    opened: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
    _stores.append(TCPStore(HOST, port, size, timeout=PATIENCE, **opened))
    return join()


def join() -> Team:
    """Meet the others, by the environment that torchrun and `accelerate launch` would give. Raises `TooFewGpus`."""
    with_gpus = torch.cuda.is_available()
    if with_gpus:
        _require_gpus(int(os.environ["WORLD_SIZE"]))
    else:
        os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"  # not "cpu:1", to which torch cannot load an optimizer
    state = PartialState(cpu=not with_gpus, timeout=PATIENCE)
    return Team(state.process_index, state.num_processes, dist.new_group(backend="gloo", timeout=PATIENCE))


def _require_gpus(wanted: int) -> None:
    """Before each process takes its own: torch would only say that there is no such device."""
    seen = torch.cuda.device_count()
    if seen < wanted:
        raise TooFewGpus(f"The job asks for {wanted} GPUs; its trainer sees {seen}.")


_stores: list[Any] = []
"""Kept for as long as the process lives: the others look things up there."""
