"""How a file without held-out tasks of its own is split: the rule that admission counts by and the trainer follows.

The split is by prompt, not by row: rows with the same prompt stay on one side, so that nothing held out is trained on.
"""

FEWEST_TASKS = 2
"""Held-out tasks below which nothing can be compared."""
FEWEST_SIGNIFICANT = 6
"""Tasks that must be fixed, with none broken, for p < 0.05 in the exact two-sided McNemar test: 2 x 0.5^6 = 0.03."""


def held_out_prompts(prompts: int, fraction: float) -> int:
    """How many of `prompts` different prompts are held out: `fraction` of them, and never so few that none compare."""
    return min(prompts, max(FEWEST_TASKS, round(fraction * prompts)))
