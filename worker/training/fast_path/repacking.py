"""A generation batch, torn by TRL into micro-batches, put together anew from the rollouts that teach something."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from worker.training.fast_path.layout import Rollouts, plan
from worker.training.fast_path.operations import Costs, of_padded_rows, of_trees
from worker.training.fast_path.packing import RolloutSize, Share, pack, weight
from worker.training.fast_path.sharing_out import share_out

Slice = dict[str, Any]
"""One micro-batch of TRL's buffer: tensors by name, one row a rollout; scalars are the whole batch's."""


@dataclass(slots=True)
class Saved:
    """What one generation batch was spared, counted once whatever the number of iterations."""

    rollouts: int = 0
    tokens: int = 0
    stock_operations: float = 0.0
    """Of one forward pass over all its micro-batches."""
    operations: float = 0.0

    def of_all(self, accelerator: Any) -> "Saved":
        """The same of all processes together."""
        ours = torch.tensor([self.rollouts, self.tokens, self.stock_operations, self.operations], dtype=torch.float64)
        rollouts, tokens, stock, fast = accelerator.reduce(ours.to(accelerator.device), reduction="sum").tolist()
        return Saved(int(rollouts), int(tokens), stock, fast)

    @property
    def left(self) -> float:
        """Share of a forward pass that is still computed."""
        return self.operations / self.stock_operations if self.stock_operations else 1.0


def _alone(batch: Slice) -> Slice:
    return batch


@dataclass(frozen=True, slots=True)
class Processes:
    """Who trains together, and how each gets the rollouts of all."""

    rank: int = 0
    count: int = 1
    of_all: Callable[[Slice], Slice] = _alone


@dataclass(frozen=True, slots=True)
class Repacker:
    loss_type: str
    window: int
    """So many micro-batches running never straddle an optimizer step; rollouts stay within them."""
    dtype: torch.dtype
    """Of advantages: that of log-probabilities, so that a weight rounds nothing."""
    costs: Costs | None
    """Unset: every rollout is computed as TRL lays it out."""
    leaves_out: bool
    """Whether rollouts without a signal are left out; if not, only what is saved is counted."""
    processes: Processes = Processes()
    is_whole_step: bool = True
    """Whether a window is all that an optimizer step has."""

    def repack(self, slices: Sequence[Slice]) -> tuple[list[Slice], Saved]:
        saved = Saved()
        packed: list[Slice] = []
        for start in range(0, len(slices), self.window):
            window = slices[start : start + self.window]
            packed += self._repack_window(window, saved) if self.leaves_out else window
        self._count(slices, packed, saved)
        return packed, saved

    def _repack_window(self, window: Sequence[Slice], saved: Saved) -> list[Slice]:
        """As many micro-batches as before, some perhaps empty."""
        batch = self.processes.of_all(_join(window))
        trained = loss_mask(batch).sum(dim=1)
        tokens, size = trained.tolist(), len(window[0]["advantages"])
        stock = [Share(size, sum(tokens[start : start + size])) for start in range(0, len(tokens), size)]
        kept = ((batch["advantages"] != 0) & (trained > 0)).nonzero().flatten().tolist()
        everybodys = self._pack(batch, kept, passes=len(window), size=size)
        packed = []
        for rows, count in zip(everybodys[self.processes.rank], self._counts(everybodys), strict=True):
            saved.rollouts += size - len(rows)
            ours = Share(count, sum(tokens[row] for row in rows))
            weights = [weight(self.loss_type, stock[row // size], ours) for row in rows]
            part = self._take(batch, rows, weights) if rows or not count else self._nothing(batch)
            packed.append(_with_blanks(part, count))
        return packed

    def _pack(self, batch: Slice, kept: list[int], *, passes: int, size: int) -> list[list[list[int]]]:
        """The rollouts of each micro-batch of each process. With several, the last are full: there DDP exchanges."""
        sizes = rollouts_of(batch).sizes()
        shares = share_out(self.costs, [sizes[row] for row in kept], self.processes.count, passes * size)
        width = batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1]
        packed = []
        for share in shares:
            rows = [kept[place] for place in share]
            own = [sizes[row] for row in rows]
            places = self._places(own, passes=passes, rollouts_per_pass=size, tokens_per_pass=size * width)
            packed.append([[rows[place] for place in part] for part in places])
        return packed if self.processes.count == 1 else [parts[::-1] for parts in packed]

    def _places(
        self, sizes: Sequence[RolloutSize], *, passes: int, rollouts_per_pass: int, tokens_per_pass: int
    ) -> list[list[int]]:
        if self.costs is not None:
            return pack(
                self.costs, sizes, passes=passes, rollouts_per_pass=rollouts_per_pass, tokens_per_pass=tokens_per_pass
            )
        rows = list(range(len(sizes)))
        parts = [rows[start : start + rollouts_per_pass] for start in range(0, len(rows), rollouts_per_pass)]
        return parts + [[] for _ in range(passes - len(parts))]

    def _counts(self, everybodys: Sequence[Sequence[Sequence[int]]]) -> list[int]:
        """Rows of each micro-batch, the same in every process: TRL gathers numbers of each row, and whoever had none
        would keep the others waiting.

        The gradients of an optimizer step are exchanged in its last micro-batch, so that is never left out where the
        step may have others.
        """
        counts = [max(map(len, parts)) for parts in zip(*everybodys, strict=True)]
        if self.processes.count > 1 and not self.is_whole_step:
            counts[-1] = max(counts[-1], 1)
        return counts

    def _nothing(self, batch: Slice) -> Slice:
        """The shortest rollout with a weight of 0: a pass whose gradient is 0."""
        sizes = rollouts_of(batch).sizes()
        lengths = [one.prompt_tokens + one.completion_tokens if one.completion_tokens else math.inf for one in sizes]
        return self._take(batch, [lengths.index(min(lengths))], [0.0])

    def _take(self, batch: Slice, rows: Sequence[int], weights: Sequence[float]) -> Slice:
        index = torch.tensor(rows, dtype=torch.long, device=batch["advantages"].device)
        part = {name: value[index] if _has_rows(value) else value for name, value in batch.items()}
        if any(one != 1.0 for one in weights):
            dtype = torch.promote_types(self.dtype, part["advantages"].dtype)
            part["advantages"] = part["advantages"] * torch.tensor(weights, dtype=dtype, device=index.device)
        return part

    def _count(self, slices: Sequence[Slice], packed: Sequence[Slice], saved: Saved) -> None:
        for stock, ours in zip(slices, packed, strict=True):
            theirs, mine = rollouts_of(stock), rollouts_of(ours)
            saved.tokens += int(theirs.mask.sum())
            if self.costs is None:
                saved.tokens -= int(mine.mask.sum())
                continue
            _, trees = plan(mine.sizes(), self.costs, theirs.mask.numel())
            saved.tokens -= sum(tree.tokens for tree in trees)
            saved.operations += of_trees(self.costs, trees)
            saved.stock_operations += stock_operations(self.costs, theirs)


def _with_blanks(part: Slice, count: int) -> Slice:
    """As many rows, by more in which no token is scored."""
    have = len(part["advantages"])
    if have == count:
        return part
    rows = torch.tensor([*range(have), *[0] * (count - have)], device=part["advantages"].device)
    filled = {name: value[rows] if _has_rows(value) else value for name, value in part.items()}
    filled["advantages"][have:] = 0.0
    filled["completion_mask"][have:] = 0
    return filled


def rollouts_of(part: Slice) -> Rollouts:
    return Rollouts(
        ids=torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1),
        mask=torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1),
        completion_width=part["completion_ids"].shape[1],
    )


def loss_mask(part: Slice) -> torch.Tensor:
    """Where a token is trained: not in the answers of tools."""
    mask: torch.Tensor = part["completion_mask"]
    return mask * part["tool_mask"] if "tool_mask" in part else mask


def stock_operations(costs: Costs, rollouts: Rollouts) -> float:
    """Of TRL's forward pass. Its fused head scores every position where it has no Triton, and the labels alone where it
    has; its attention needs a mask where anything is padded.
    """
    rows, width = rollouts.mask.shape
    labels = rows * (width - 1)
    if rollouts.mask.is_cuda:
        labels = int(rollouts.mask[:, -rollouts.completion_width :].sum())
    return of_padded_rows(costs, rows, width, labels, is_masked=not rollouts.mask.all())


def _join(parts: Sequence[Slice]) -> Slice:
    """Undo TRL's `split_tensor_dict`."""
    return {
        name: torch.cat([part[name] for part in parts]) if _has_rows(value) else value
        for name, value in parts[0].items()
    }


def _has_rows(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0
