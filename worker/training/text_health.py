"""How alike and how repetitive the completions of a step are: what a reward may pay for without anybody's wish."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

SHORTEST_BYTES = 200
"""Below it, what zlib adds of its own says more than the text."""
REFUSAL_CHARS = 300
"""A refusal says so at its beginning; further on, "I cannot" is part of some story."""
REFUSALS = (
    r"\bI(?:'m| am) (?:very |so |really )?(?:sorry|afraid)\b",
    r"\bI (?:can(?:'t|not)|could ?n[o']t|won't|will not|must not|do not|don't) (?:help|assist|provide|answer|comply)\b",
    r"\bI (?:can(?:'t|not)|won't|will not) (?:do that|fulfil|engage|create|generate|write|discuss|share)\b",
    r"\bI(?:'m| am) (?:not able|unable) to\b",
    r"\b(?:as|I(?:'m| am)) an? (?:AI|artificial intelligence|(?:large )?language model)\b",
    r"\b(?:cannot|can't|unable to) (?:fulfil|comply with|help with|assist with) (?:this|that|your|the) request\b",
    r"\bI must (?:respectfully )?(?:decline|refuse)\b",
    r"\bI apologi[sz]e,? but\b",
)
"""English only, and only what models say of themselves (after the prefixes of Zou et al. 2023, arXiv 2307.15043,
without those that plain answers begin with too). A refusal in other words or another language is not seen; a job can
count its own with `watch`.
"""
_REFUSAL = re.compile("|".join(REFUSALS), re.IGNORECASE)


def text_metrics(texts: Sequence[str], *, group_size: int) -> dict[str, float]:
    """`texts`: the completions of one generation batch, those of a prompt side by side.

    `completions/distinct_share`: different completions of a prompt, as a share of the group; mean over the groups.
    `completions/most_common_share`: how much of the whole batch is one and the same text; of a batch with several
    prompts.
    `completions/refusal_share`: completions that begin with a refusal (`REFUSALS`).
    `completions/compressed_share`: size after zlib over size before, mean over the longer ones; prose is near 0.5, a
    loop near 0.
    """
    groups = [texts[start : start + group_size] for start in range(0, len(texts), group_size)]
    metrics = {
        "completions/distinct_share": fmean(len(set(group)) / len(group) for group in groups),
        "completions/refusal_share": fmean(map(is_refusal, texts)),
    }
    if len(groups) > 1:
        metrics["completions/most_common_share"] = Counter(texts).most_common(1)[0][1] / len(texts)
    encoded = [text.encode("utf-8", "surrogatepass") for text in texts]
    if long := [data for data in encoded if len(data) >= SHORTEST_BYTES]:
        metrics["completions/compressed_share"] = fmean(len(zlib.compress(data)) / len(data) for data in long)
    return metrics


def is_refusal(text: str) -> bool:
    return _REFUSAL.search(text[:REFUSAL_CHARS].replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")) is not None
