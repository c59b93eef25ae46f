"""The rule of dynamic sampling: which of the groups that were generated a step is trained on.

After DAPO (Yu et al. 2025, arXiv 2503.14476, section 3.2), but that nothing is generated in vain: further groups are
as many as are still missing, so no group that disagrees is ever thrown away.
"""

from collections.abc import Sequence

from core.signal import SILENT, GroupOutcome


def trained_groups(outcomes: Sequence[GroupOutcome], size: int) -> list[int]:
    """Places of the `size` groups to train on, of all in the order they were generated.

    The first `size`, but that each silent one among them gives way to the next later group that is mixed, if there is.
    An ungraded one stays: other prompts would fare no better.
    """
    spare = (place for place in range(size, len(outcomes)) if outcomes[place] is GroupOutcome.MIXED)
    return [next(spare, place) if outcomes[place] in SILENT else place for place in range(size)]


def missing(outcomes: Sequence[GroupOutcome], size: int) -> int:
    """How many of the groups to train on are silent still."""
    return sum(outcomes[place] in SILENT for place in trained_groups(outcomes, size))
