"""How alike and how repetitive the completions of a step are: what a reward may pay for without anybody's wish."""

import zlib
from collections.abc import Sequence
from statistics import fmean

SHORTEST_BYTES = 200
"""Below it, what zlib adds of its own says more than the text."""


def text_metrics(texts: Sequence[str], *, group_size: int) -> dict[str, float]:
    """`texts`: the completions of one generation batch, those of a prompt side by side.

    `completions/distinct_share`: different completions of a prompt, as a share of the group; mean over the groups.
    `completions/compressed_share`: size after zlib over size before, mean over the longer ones; prose is near 0.5, a
    loop near 0.
    """
    groups = [texts[start : start + group_size] for start in range(0, len(texts), group_size)]
    metrics = {"completions/distinct_share": fmean(len(set(group)) / len(group) for group in groups)}
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    if long := [data for data in encoded if len(data) >= SHORTEST_BYTES]:
        metrics["completions/compressed_share"] = fmean(len(zlib.compress(data)) / len(data) for data in long)
    return metrics
