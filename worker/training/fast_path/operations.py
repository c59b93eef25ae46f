"""How many operations a pass takes: by this the fast path chooses, and by this its savings are counted.

Pure numbers. One operation is one multiplication or one addition, so a matrix product takes two for each weight and
token. Norms, activations and other work of the size of the hidden states are left out: they follow the tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MASKED_ATTENTION = 2.0
"""What one operation of attention under a mask costs, in operations of a matrix product. Kernels that take a mask are
slower than causal ones on CPUs and GPUs alike, and they cannot leave out what the mask hides."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Operations of one model, forward."""

    token: float
    """One token in all linear layers."""
    pair: float
    """One query with one key, in all heads and layers: the score, and the sum over values."""
    label: float
    """One scored position in the language model's head."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Rollouts of one prompt in one sequence: the prompt once, then each completion as a branch of its own.

    Each branch begins with a copy of the prompt's last token, which has a label in every branch, and ends before the
    completion's last token, which has none to predict. With one branch it is the plain sequence.
    """

    prompt: int
    """Tokens, at least one."""
    completions: tuple[int, ...]

    @property
    def tokens(self) -> int:
        return self.prompt - 1 + self.labels

    @property
    def labels(self) -> int:
        return sum(self.completions)

    @property
    def is_shared(self) -> bool:
        return len(self.completions) > 1


def padded_tokens(trees: Sequence[Tree]) -> int:
    return len(trees) * max((tree.tokens for tree in trees), default=0)


def of_trees(costs: Costs, trees: Sequence[Tree]) -> float:
    """One forward pass over trees that are padded to the longest."""
    if not trees:
        return 0.0
    width = max(tree.tokens for tree in trees)
    labels = sum(tree.labels for tree in trees)
    is_masked = any(tree.is_shared for tree in trees)
    return len(trees) * _sequence(costs, width, is_masked=is_masked) + labels * costs.label


def of_padded_rows(costs: Costs, rows: int, width: int, labels: int, *, is_masked: bool) -> float:
    """One forward pass as TRL lays it out: prompts padded on the left, completions on the right."""
    return rows * _sequence(costs, width, is_masked=is_masked) + labels * costs.label


def split_group(costs: Costs, prompt: int, completions: Sequence[int], longest: int | None = None) -> list[list[int]]:
    """The rollouts of one prompt as trees, cheapest in operations: lists of indices into `completions`.

    Long completions make several small trees, or none: attention grows with the square of a tree, the saving only with
    the prompt. No tree of several branches is longer than `longest` tokens.
    """
    order = sorted(range(len(completions)), key=lambda index: (-completions[index], index))
    best, least = [[index] for index in order], float("inf")
    for count in range(1, len(order) + 1):
        parts = _even_parts(order, count)
        trees = [Tree(prompt, tuple(completions[index] for index in part)) for part in parts]
        if longest is not None and any(tree.is_shared and tree.tokens > longest for tree in trees):
            continue
        operations = sum(of_trees(costs, [tree]) for tree in trees)
        if operations < least:
            best, least = parts, operations
    return best


def _sequence(costs: Costs, width: int, *, is_masked: bool) -> float:
    pairs = MASKED_ATTENTION * width * width if is_masked else width * (width + 1) / 2
    return width * costs.token + pairs * costs.pair


def _even_parts(items: Sequence[int], count: int) -> list[list[int]]:
    """`count` runs of neighbours whose lengths differ by one at most."""
    size, longer = divmod(len(items), count)
    borders = [number * size + min(number, longer) for number in range(count + 1)]
    return [list(items[start:end]) for start, end in pairwise(borders)]
