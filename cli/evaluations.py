"""How held-out evaluations, and a verdict on two of them, read in a terminal."""

from collections.abc import Iterator

from cli.client import ComparisonView, EvaluationsView, SideView
from cli.verdict import verdict_counts
from core.results import Score

HEADING = ("evaluation", "step", "greedy", "95 %", "sampled", "95 %", "mean reward", "95 %", "")
"""The mean reward is that of the decoding which the job is judged by."""


def evaluation_rows(found: EvaluationsView) -> Iterator[tuple[str, ...]]:
    for one in found.data:
        judged = one.sampled if found.decoding == "sampled" else one.greedy
        yield (
            one.name,
            str(one.step),
            *_passed(one.greedy),
            *_passed(one.sampled),
            "-" if judged.mean_reward is None else f"{judged.mean_reward:.3f}",
            "-" if judged.mean_reward_ci95 is None else "{:.3f} to {:.3f}".format(*judged.mean_reward_ci95),
            "best" if one.name == found.best else "",
        )


def comparison_lines(found: ComparisonView) -> list[str]:
    return [
        f"before    {_side(found.before)}",
        f"after     {_side(found.after)}",
        *verdict_counts(found.verdict),
    ]


def _passed(score: Score) -> tuple[str, str]:
    """Of the answers that could be graded."""
    interval = score.pass_rate_ci95
    reach = "-" if interval is None else f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f} %"
    return f"{score.passed}/{score.n}", reach


def _side(side: SideView) -> str:
    return f"{side.evaluation} of {side.job_id} (step {side.step})"
