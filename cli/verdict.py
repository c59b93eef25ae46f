"""What the held-out tasks say, as a few lines that begin with fixed words, for people and scripts."""

from cli.client import VerdictView
from core.results import EvaluationScore, JobResults, Score, Verdict


def verdict_lines(results: JobResults) -> list[str]:
    return [
        f"baseline  {_score(results.baseline)}",
        f"final     {_score(results.final)}",
        *verdict_counts(results.verdict),
    ]


def verdict_counts(verdict: Verdict | VerdictView) -> list[str]:
    """What changed between two evaluations, and the sentence that says what it is worth."""
    p_value = "not comparable" if verdict.p_value is None else f"{verdict.p_value:.2g}"
    return [
        f"fixed     {verdict.fixed} of {verdict.tasks} tasks failed before and pass now ({verdict.decoding})",
        f"broken    {verdict.broken} of {verdict.tasks} tasks passed before and fail now ({verdict.decoding})",
        f"p         {p_value} (exact two-sided McNemar test)",
        verdict.sentence,
    ]


def _score(evaluation: EvaluationScore) -> str:
    mean = evaluation.sampled.mean_reward
    reward = "" if mean is None else f", mean reward {mean:.3f}"
    return f"sampled {_passed(evaluation.sampled)}, greedy {_passed(evaluation.greedy)}{reward}"


def _passed(score: Score) -> str:
    share = "" if score.pass_rate is None else f" ({100 * score.pass_rate:.1f} %)"
    return f"{score.passed}/{score.n}{share}"
