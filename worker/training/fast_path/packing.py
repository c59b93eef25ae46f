"""Which rollouts share a pass, and what each must weigh there so that the gradient stays that of the full batch. Pure.

TRL tears a generation batch into micro-batches at random and pads each to the longest rollout of all. Any other
arrangement gives the same gradient as long as every rollout stays within its optimizer step, and keeps its weight.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from worker.training.fast_path.operations import Costs, Tree, of_trees, padded_tokens, split_group

MEANS_OVER_ROLLOUTS = frozenset({"grpo", "sapo", "dr_grpo", "luspo"})
"""Loss types that divide by the number of rollouts in the micro-batch."""
SUMS_OVER_THE_BATCH = frozenset({"dapo", "cispo", "vespo"})
"""Loss types that divide by a number which is the whole batch's, whatever the micro-batch holds."""
MEAN_OVER_TOKENS = "bnpo"
"""The loss type that divides by the number of trained tokens in the micro-batch."""


@dataclass(frozen=True, slots=True)
class RolloutSize:
    prompt: int
    """The same number for the same prompt."""
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Share:
    """What a micro-batch divides by."""

    rollouts: int
    trained_tokens: int


def weight(loss_type: str, stock: Share, ours: Share) -> float:
    """What undoes that a rollout of TRL's micro-batch `stock` is trained in the micro-batch `ours`.

    It multiplies the advantage: every loss type is proportional to it.
    """
    if loss_type in SUMS_OVER_THE_BATCH:
        return 1.0
    if loss_type == MEAN_OVER_TOKENS:
        return max(ours.trained_tokens, 1) / max(stock.trained_tokens, 1)
    return ours.rollouts / stock.rollouts


def pack(
    costs: Costs, sizes: Sequence[RolloutSize], *, passes: int, rollouts_per_pass: int, tokens_per_pass: int
) -> list[list[int]]:
    """Which rollouts each of `passes` micro-batches computes: indices into `sizes`; the last ones may be empty.

    As arranged, no micro-batch has more tokens than `tokens_per_pass`, padding included: TRL's size, so that memory
    stays below. Rollouts of like length stand together.
    """
    trees = trees_for(costs, sizes, tokens_per_pass)
    trees.sort(key=lambda rows: -_tree(sizes, rows).tokens)
    bins: list[list[int]] = []
    count, width = 0, 0
    for rows in trees:
        if not bins or (count + 1) * width > tokens_per_pass:
            bins.append([])
            count, width = 0, _tree(sizes, rows).tokens
        bins[-1].extend(rows)
        count += 1
    if len(bins) > passes or not all(_fits(costs, [sizes[row] for row in rows], tokens_per_pass) for rows in bins):
        in_order = [row for rows in trees for row in rows]
        bins = [in_order[start : start + rollouts_per_pass] for start in range(0, len(in_order), rollouts_per_pass)]
    return bins + [[] for _ in range(passes - len(bins))]


def arrange(costs: Costs, sizes: Sequence[RolloutSize], most_tokens: int) -> list[list[int]]:
    """The trees of one pass, as indices into `sizes`: the cheapest in operations, with the padding to the longest, of
    those that have no more than `most_tokens`.
    """
    shared = trees_for(costs, sizes, most_tokens)
    alone = [[index] for index in range(len(sizes))]

    def rank(arranged: list[list[int]]) -> tuple[float, float]:
        trees = trees_of(sizes, arranged)
        return max(padded_tokens(trees), most_tokens), of_trees(costs, trees)

    return min(alone, shared, key=rank)


def trees_of(sizes: Sequence[RolloutSize], arranged: Sequence[Sequence[int]]) -> list[Tree]:
    return [_tree(sizes, rows) for rows in arranged]


def _fits(costs: Costs, sizes: Sequence[RolloutSize], most_tokens: int) -> bool:
    return padded_tokens(trees_of(sizes, arrange(costs, sizes, most_tokens))) <= most_tokens


def trees_for(costs: Costs, sizes: Sequence[RolloutSize], longest: int | None) -> list[list[int]]:
    """Each group as trees, cheapest in operations, none longer than `longest`: indices into `sizes`."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, size in enumerate(sizes):
        groups[size.prompt].append(index)
    trees = []
    for rows in groups.values():
        lengths = [sizes[row].completion_tokens for row in rows]
        parts = split_group(costs, sizes[rows[0]].prompt_tokens, lengths, longest)
        trees += [[rows[place] for place in part] for part in parts]
    return trees


def _tree(sizes: Sequence[RolloutSize], rows: Sequence[int]) -> Tree:
    return Tree(sizes[rows[0]].prompt_tokens, tuple(sizes[row].completion_tokens for row in rows))
