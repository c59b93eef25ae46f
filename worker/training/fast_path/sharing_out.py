"""Which process computes which of the rollouts that are left, when several train together.

Silence does not fall evenly: one process may have all that teaches and the others nothing, and all would wait for it.
So what is left is known to all, and shared out anew. DDP and FSDP take the mean of what the processes have computed,
whoever computed it, so a rollout weighs the same anywhere.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch

from worker.training.fast_path.operations import Costs, of_trees
from worker.training.fast_path.packing import RolloutSize, trees_for, trees_of


def of_all_processes(accelerator: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The rows of everybody's `batch`, by rank, padded alike: prompts on the left, completions on the right."""
    if accelerator.num_processes == 1:
        return batch
    return {name: _of_all(accelerator, name, batch[name]) for name in sorted(batch)}


def share_out(costs: Costs | None, sizes: Sequence[RolloutSize], processes: int, most: int) -> list[list[int]]:
    """The rollouts of each process, as indices into `sizes`: alike in operations, none with more than `most` rollouts.

    A group stays together, for the sake of its prompt; where there are fewer groups than processes it is divided. The
    same numbers give the same parts, so every process finds them by itself.
    """
    if processes == 1:
        return [list(range(len(sizes)))]
    shares: list[list[int]] = [[] for _ in range(processes)]
    loads = [0.0] * processes
    for whole in _portions(costs, sizes, processes):
        rest = whole
        while rest:
            free = [process for process in range(processes) if len(shares[process]) < most]
            process = min(free, key=lambda one: (loads[one], one))
            room = most - len(shares[process])
            taken, rest = rest[:room], rest[room:]
            shares[process] += taken
            loads[process] += _work(costs, sizes, taken)
    return shares


def _portions(costs: Costs | None, sizes: Sequence[RolloutSize], processes: int) -> list[list[int]]:
    """What goes to one process each, the heaviest first."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, size in enumerate(sizes):
        groups[size.prompt].append(index)
    portions = list(groups.values())
    while len(portions) < min(processes, len(sizes)):
        portions.sort(key=lambda rows: (len(rows) > 1, _work(costs, sizes, rows)))
        heaviest = portions.pop()
        middle = len(heaviest) // 2
        portions += [heaviest[:middle], heaviest[middle:]]
    return sorted(portions, key=lambda rows: -_work(costs, sizes, rows))


def _work(costs: Costs | None, sizes: Sequence[RolloutSize], rows: Sequence[int]) -> float:
    """Operations of these rollouts; tokens, where they are laid out as TRL does."""
    own = [sizes[row] for row in rows]
    if costs is None:
        return float(sum(size.prompt_tokens + size.completion_tokens for size in own))
    return sum(of_trees(costs, [tree]) for tree in trees_of(own, trees_for(costs, own, None)))


def _of_all(accelerator: Any, name: str, value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    if value.ndim > 1:
        value = accelerator.pad_across_processes(value, dim=1, pad_first=name.startswith("prompt_"))
    return accelerator.gather(value.contiguous())
