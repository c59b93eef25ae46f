"""The sequences that a pass computes instead of TRL's padded rows, and where in them completion tokens are scored."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.training.fast_path.operations import Costs, Tree
from worker.training.fast_path.packing import RolloutSize, arrange, trees_of

_PROMPT = -1
_PADDING = -2


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A batch as TRL passes it on: prompts padded on the left, completions on the right."""

    ids: torch.Tensor
    """(rows, prompt width + completion width)"""
    mask: torch.Tensor
    """The same shape; 0 for padding, and for all of a completion that is masked for being truncated."""
    completion_width: int

    @property
    def prompt_width(self) -> int:
        return self.ids.shape[1] - self.completion_width

    def chunks(self, rows: int | None) -> "list[Rollouts]":
        """Of so many rows each; all in one where it is unset."""
        size = rows or len(self.ids)
        starts = range(0, len(self.ids), size)
        return [
            Rollouts(self.ids[start : start + size], self.mask[start : start + size], self.completion_width)
            for start in starts
        ]

    def sizes(self) -> list[RolloutSize]:
        prompt_mask, completion_mask = self.mask[:, : self.prompt_width], self.mask[:, self.prompt_width :]
        prompts = self.ids[:, : self.prompt_width].masked_fill(prompt_mask == 0, -1)
        _, numbers = torch.unique(prompts, dim=0, return_inverse=True)
        counts = torch.stack([numbers, prompt_mask.sum(1), completion_mask.sum(1)], dim=1).tolist()
        return [RolloutSize(*count) for count in counts]


@dataclass(frozen=True, slots=True)
class Layout:
    trees: Sequence[Tree]
    input_ids: torch.Tensor
    """(trees, tokens of the longest)"""
    position_ids: torch.Tensor | None
    attention_mask: torch.Tensor | None
    """(trees, 1, tokens, tokens), true where a query sees a key. None, as the positions: each tree is one plain
    sequence, and padding on the right is never seen."""
    places: torch.Tensor
    """Of what predicts each completion token, in `input_ids` flattened."""
    targets: torch.Tensor
    """The completion tokens, in the order of `places`."""
    slots: torch.Tensor
    """Where they belong in (rows, completion width) flattened."""


def plan(sizes: Sequence[RolloutSize], costs: Costs, most_tokens: int) -> tuple[list[list[int]], list[Tree]]:
    """The trees of one pass, and which rollouts are in each; those without a labelled token are in none."""
    labelled = [index for index, size in enumerate(sizes) if size.completion_tokens]
    kept = [sizes[index] for index in labelled]
    arranged = arrange(costs, kept, most_tokens)
    return [[labelled[place] for place in tree] for tree in arranged], trees_of(kept, arranged)


def lay_out(rollouts: Rollouts, costs: Costs, rollouts_per_pass: int) -> Layout | None:
    """None where no token has a label. `rollouts_per_pass`: TRL's, whose micro-batch ours never exceeds in tokens."""
    sizes = rollouts.sizes()
    rows, trees = plan(sizes, costs, rollouts_per_pass * rollouts.ids.shape[1])
    return _build(rollouts, sizes, rows, trees) if trees else None


def _build(
    rollouts: Rollouts, sizes: Sequence[RolloutSize], rows: Sequence[Sequence[int]], trees: Sequence[Tree]
) -> Layout:
    device, width = rollouts.ids.device, max(tree.tokens for tree in trees)
    ids = torch.zeros(len(trees), width, dtype=torch.long, device=device)
    positions = torch.zeros_like(ids)
    branches = torch.full_like(ids, _PADDING)

    stems = _Runs([tree.prompt - 1 for tree in trees], device)
    prompt_ends = _per_run([tree[0] for tree in rows], stems) * rollouts.ids.shape[1] + rollouts.prompt_width
    stem_places = stems.number * width + stems.offset
    ids.view(-1)[stem_places] = rollouts.ids.view(-1)[prompt_ends - 1 - stems.length + stems.offset]
    positions.view(-1)[stem_places] = stems.offset
    branches.view(-1)[stem_places] = _PROMPT

    flat = [row for tree in rows for row in tree]
    numbers = [number for number, tree in enumerate(rows) for _ in tree]
    starts = [start for tree in trees for start in _starts(tree)]
    twigs = _Runs([sizes[row].completion_tokens for row in flat], device)
    row = _per_run(flat, twigs)
    places = _per_run(numbers, twigs) * width + _per_run(starts, twigs) + twigs.offset
    sources = row * rollouts.ids.shape[1] + rollouts.prompt_width + twigs.offset
    ids.view(-1)[places] = rollouts.ids.view(-1)[sources - 1]
    positions.view(-1)[places] = _per_run([sizes[one].prompt_tokens for one in flat], twigs) - 1 + twigs.offset
    branches.view(-1)[places] = twigs.number
    is_shared = any(tree.is_shared for tree in trees)
    return Layout(
        trees=trees,
        input_ids=ids,
        position_ids=positions if is_shared else None,
        attention_mask=_tree_mask(branches) if is_shared else None,
        places=places,
        targets=rollouts.ids.view(-1)[sources],
        slots=row * rollouts.completion_width + twigs.offset,
    )


class _Runs:
    """Runs of these lengths one after another: for each element the number of its run, and its offset in it."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        sizes = torch.tensor(lengths, device=device)
        self.number = torch.repeat_interleave(sizes)
        self.length = sizes[self.number]
        self.offset = torch.arange(len(self.number), device=device) - (sizes.cumsum(0) - sizes)[self.number]


def _per_run(values: Sequence[int], runs: _Runs) -> torch.Tensor:
    return torch.tensor(values, device=runs.number.device)[runs.number]


def _starts(tree: Tree) -> list[int]:
    starts, at = [], tree.prompt - 1
    for length in tree.completions:
        starts.append(at)
        at += length
    return starts


def _tree_mask(branches: torch.Tensor) -> torch.Tensor:
    """A token sees what stands before it in the prompt and in its own branch. Padding sees itself: a row of a mask that
    hides everything would be NaN.
    """
    width = branches.shape[1]
    is_before = torch.ones(width, width, dtype=torch.bool, device=branches.device).tril()
    keys, queries = branches[:, None, :], branches[:, :, None]
    return (is_before & ((keys == _PROMPT) | (keys == queries)))[:, None]
