"""The rule of dynamic sampling: which of the groups that were generated a step is trained on.

After DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.2), but that nothing is generated in vain: further groups are
as many as are still missing, so no group that disagrees is ever thrown away.
"""

from collections.abc import Sequence
from enum import Enum, auto

from core.signal import is_silent


class Kind(Enum):
    MIXED = auto()
    SILENT = auto()
    UNGRADED = auto()
    """Without one reward: whether it is silent nobody knows, and other prompts would fare no better."""


def kind_of(rewards: Sequence[float]) -> Kind:
    """`rewards`: those that a group has."""
    if not rewards:
        return Kind.UNGRADED
    return Kind.SILENT if is_silent(rewards) else Kind.MIXED


def trained_groups(kinds: Sequence[Kind], size: int) -> list[int]:
    """Places of the `size` groups to train on, of all in the order they were generated.

    The first `size`, but that each silent one among them gives way to the next later group that is mixed, if there is.
    """
    spare = (place for place in range(size, len(kinds)) if kinds[place] is Kind.MIXED)
    return [next(spare, place) if kinds[place] is Kind.SILENT else place for place in range(size)]


def missing(kinds: Sequence[Kind], size: int) -> int:
    """How many of the groups to train on are silent still."""
    return sum(kinds[place] is Kind.SILENT for place in trained_groups(kinds, size))
