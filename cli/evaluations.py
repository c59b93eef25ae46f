"""How held-out evaluations, and a verdict on two of them, read in a terminal."""

from collections.abc import Iterator

from cli.client import ComparisonView, EvaluationsView, ScoreView, SideView
from cli.verdict import verdict_counts


def evaluation_rows(found: EvaluationsView) -> Iterator[tuple[str, ...]]:
    """A heading, then a row for each. The mean reward is that of the decoding which the job is judged by."""
    judged_by = found.decoding or "greedy"
    yield ("evaluation", "step", "greedy", "95 %", "sampled", "95 %", f"mean reward, {judged_by}", "95 %", "")
    for one in found.data:
        yield (
            one.name,
            str(one.step),
            *_passed(one.greedy),
            *_passed(one.sampled),
            *_mean(one.sampled if judged_by == "sampled" else one.greedy),
            "best" if one.name == found.best else "",
        )


def comparison_lines(found: ComparisonView) -> list[str]:
    return [
        f"before    {_side(found.before)}",
        f"after     {_side(found.after)}",
        *verdict_counts(found.verdict),
    ]


def _mean(score: ScoreView) -> tuple[str, str]:
    mean, interval = score.mean_reward, score.mean_reward_ci95
    return (
        "-" if mean is None else f"{mean:.3f}",
        "-" if interval is None else f"{interval[0]:.3f} to {interval[1]:.3f}",
    )


def _passed(score: ScoreView) -> tuple[str, str]:
    """Of the answers that could be graded."""
    interval = score.pass_rate_ci95
    reach = "-" if interval is None else f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f} %"
    return f"{score.passed}/{score.n}", reach


def _side(side: SideView) -> str:
    return f"{side.evaluation} of {side.job_id} (step {side.step})"
