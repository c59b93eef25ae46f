"""Did it learn? Baseline against final on the same held-out tasks, paired.

Pass or fail: the exact two-sided McNemar test (McNemar 1947), which is a binomial test on the tasks that changed.
Mean reward: a paired bootstrap over tasks (Efron 1979). Rates: Wilson intervals (Wilson 1927).

Rows with the same prompt are one task, since one answer to it says what the next will be: it passed when more than half
of its rows did, its reward is their mean, and an interval of a rate counts it once, with the share of its rows.

Standard library only: every worker and every command line loads this, and scipy alone would take longer than the rest.
"""

import math
import random
from collections.abc import Mapping, Sequence
from statistics import fmean, quantiles
from typing import Literal

from core.learning.numbers import Z_95
from core.repeated_prompts import by_prompt, most
from core.results import Answer, Decoding, Evaluation, EvaluationScore, Score, TaskResult, Verdict
from core.split import FEWEST_SIGNIFICANT, FEWEST_TASKS

SIGNIFICANCE = 0.05
RESAMPLES = 10_000
POWERS = (1, 2, 4, 8, 16, 32, 64)
FEW_GRADED_SHARE = 0.8
"""Below this share of tasks graded, on both sides where two are compared, the rest says too little about the whole."""
FEWEST_CLUSTERS = 10
"""Of fewer tasks a normal interval of their mean claims more than is known."""


def score(name: str, evaluation: Evaluation) -> EvaluationScore:
    greedy = [[task.greedy] for task in evaluation.tasks]
    sampled = [list(task.sampled) for task in evaluation.tasks]
    prompts = [task.prompt_sha256 for task in evaluation.tasks]
    ungraded = tuple(
        task.task for task in evaluation.tasks if any(answer.reward is None for answer in (task.greedy, *task.sampled))
    )
    return EvaluationScore(
        name=name,
        step=evaluation.step,
        greedy=_score(greedy, prompts),
        sampled=_score(sampled, prompts),
        ungraded_tasks=ungraded,
    )


def best(evaluations: Mapping[str, Evaluation], *, decoding: Decoding, max_error_share: float) -> str | None:
    """The name with the highest rank; the earliest of equals. None where none has one."""
    ranks = {
        name: (reward, -one.step)
        for name, one in evaluations.items()
        if (reward := rank(one, decoding=decoding, max_error_share=max_error_share)) is not None
    }
    return max(ranks, key=ranks.__getitem__, default=None)


def rank(evaluation: Evaluation, *, decoding: Decoding, max_error_share: float) -> float | None:
    """Its mean held-out reward; None where too many answers met an error, or too many tasks were given no grade: the
    mean of those that are left would be held against that of other tasks."""
    answered = sum(
        any(answer.reward is not None or answer.error is not None for answer in task.answers(decoding))
        for task in evaluation.tasks
    )
    if answered < FEW_GRADED_SHARE * len(evaluation.tasks) or not evaluation.is_reliable(decoding, max_error_share):
        return None
    return mean_reward(evaluation, decoding)


def judge(
    baseline: Evaluation,
    final: Evaluation,
    *,
    decoding: Decoding,
    seed: int,
    why: str | None = None,
    but: str | None = None,
) -> Verdict:
    """The verdict on `final`. `why` is a sentence that may explain why nothing changed; it is said only then.

    `but` is what makes the two incomparable beyond what they show themselves, such as other rewards.
    """
    pairs = _graded_pairs(baseline, final, decoding)
    fixed = sum(after and not before for before, after in pairs)
    broken = sum(before and not after for before, after in pairs)
    rewards = _mean_rewards(baseline, final, decoding)
    p_value = mcnemar_p_value(fixed, broken)
    reason = f"Not comparable: {but}." if but else _not_comparable(baseline, final, pairs)
    change = [after - before for before, after in rewards]
    interval = paired_bootstrap(change, seed=seed) if change else None
    verdict = Verdict(
        decoding=decoding,
        outcome="not_comparable" if reason else _outcome(fixed, broken, p_value, interval),
        sentence="",
        tasks=len(pairs),
        fixed=fixed,
        broken=broken,
        same=len(pairs) - fixed - broken,
        p_value=p_value if pairs else None,
        change_points=100 * (fixed - broken) / len(pairs) if pairs else None,
        mean_reward_change=fmean(change) if change else None,
        mean_reward_change_ci95=interval,
        smallest_significant_fixed=smallest_significant_fixed(len(pairs)),
    )
    return verdict.model_copy(update={"sentence": reason or _sentence(verdict, why)})


def mcnemar_p_value(fixed: int, broken: int) -> float:
    """Exact and two-sided: twice the smaller tail of a fair coin's n tosses; 1.0 when nothing changed."""
    changed = fixed + broken
    ways = tail = 1  # of 0 heads; whole numbers, so that nothing is lost to rounding
    for heads in range(1, min(fixed, broken) + 1):
        ways = ways * (changed - heads + 1) // heads
        tail += ways
    return min(1.0, 2 * tail / (1 << changed))


def wilson(passed: float, n: int) -> tuple[float, float] | None:
    """95 % interval of a rate; None when there is nothing to rate. A task of which a share passed counts that share."""
    if n == 0:
        return None
    rate, z = passed / n, Z_95
    middle = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    reach = z / (1 + z**2 / n) * math.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    return max(0.0, middle - reach), min(1.0, middle + reach)


def mean_interval(clusters: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """Normal 95 % interval of the mean of all values, of which those in one cluster are not independent.

    The standard error is the cluster-robust one (Liang and Zeger 1986), with G / (G - 1) for G clusters. None of fewer
    than ten clusters, and where all values are equal: neither would say how little is known.
    """
    values = [value for cluster in clusters for value in cluster]
    count = len(clusters)
    if count < FEWEST_CLUSTERS or min(values) == max(values):
        return None
    mean = fmean(values)
    squares = math.fsum(math.fsum(value - mean for value in cluster) ** 2 for cluster in clusters)
    reach = Z_95 * math.sqrt(count / (count - 1) * squares) / len(values)
    return mean - reach, mean + reach


def paired_bootstrap(changes: Sequence[float], *, seed: int) -> tuple[float, float]:
    """95 % percentile interval of the mean of `changes`, one per task."""
    generator = random.Random(seed)
    means = [fmean(generator.choices(changes, k=len(changes))) for _ in range(RESAMPLES)]
    fortieths = quantiles(means, n=40, method="inclusive")
    return fortieths[0], fortieths[-1]


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Chance that one of `k` samples passes, given `passed` of `n`: the unbiased estimator (Chen et al. 2021)."""
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


def smallest_significant_fixed(tasks: int) -> int | None:
    """How many tasks must be fixed, none broken, for p < 0.05; None when so few tasks can never show it."""
    return next((n for n in range(1, tasks + 1) if mcnemar_p_value(n, 0) < SIGNIFICANCE), None)


def mean_reward(evaluation: Evaluation, decoding: Decoding) -> float | None:
    rewards = [reward for task in evaluation.tasks if (reward := _task_reward(task, decoding)) is not None]
    return fmean(rewards) if rewards else None


def _score(tasks: Sequence[Sequence[Answer]], prompts: Sequence[str]) -> Score:
    """Over all answers; the interval counts each prompt once, because answers to one prompt are not independent."""
    answers = [answer for task in tasks for answer in task]
    graded = [answer for answer in answers if answer.passed is not None]
    firsts = [(prompt, task[0].passed) for prompt, task in zip(prompts, tasks, strict=True) if task]
    shares = [fmean(rows) for rows in by_prompt((prompt, one) for prompt, one in firsts if one is not None)]
    passed = sum(answer.passed is True for answer in graded)
    rewards = [
        (prompt, fmean(known))
        for prompt, task in zip(prompts, tasks, strict=True)
        if (known := [answer.reward for answer in task if answer.reward is not None])
    ]
    return Score(
        n=len(graded),
        passed=passed,
        errors=len(answers) - len(graded),
        pass_rate=passed / len(graded) if graded else None,
        pass_rate_ci95=wilson(sum(shares), len(shares)),
        mean_reward=fmean(reward for _, reward in rewards) if rewards else None,
        mean_reward_ci95=mean_interval(by_prompt(rewards)),
        truncated=sum(answer.finish_reason == "length" for answer in answers),
        pass_at=_pass_at(tasks),
    )


def _pass_at(tasks: Sequence[Sequence[Answer]]) -> dict[int, float]:
    """For powers of two up to the samples that every task has graded; the mean over the tasks."""
    graded = [[answer.passed for answer in task if answer.passed is not None] for task in tasks]
    counts = [(len(passed), sum(passed)) for passed in graded if passed]
    fewest = min((n for n, _ in counts), default=0)
    if fewest < 2:
        return {}
    return {k: fmean(pass_at_k(n, passed, k) for n, passed in counts) for k in POWERS if k <= fewest}


def _graded_pairs(baseline: Evaluation, final: Evaluation, decoding: Decoding) -> list[tuple[bool, bool]]:
    """Whether each prompt passed before and after, by the first answers to its rows that could be graded both times."""
    before = {task.task: task.answers(decoding)[0].passed for task in baseline.tasks}
    graded = [(task.prompt_sha256, before.get(task.task), task.answers(decoding)[0].passed) for task in final.tasks]
    pairs = ((prompt, (a, b)) for prompt, a, b in graded if a is not None and b is not None)
    return [(most(a for a, _ in rows), most(b for _, b in rows)) for rows in by_prompt(pairs)]


def _mean_rewards(baseline: Evaluation, final: Evaluation, decoding: Decoding) -> list[tuple[float, float]]:
    """Of each prompt, before and after."""
    before = {task.task: _task_reward(task, decoding) for task in baseline.tasks}
    graded = [(task.prompt_sha256, before.get(task.task), _task_reward(task, decoding)) for task in final.tasks]
    pairs = ((prompt, (a, b)) for prompt, a, b in graded if a is not None and b is not None)
    return [(fmean(a for a, _ in rows), fmean(b for _, b in rows)) for rows in by_prompt(pairs)]


def _task_reward(task: TaskResult, decoding: Decoding) -> float | None:
    rewards = [answer.reward for answer in task.answers(decoding) if answer.reward is not None]
    return fmean(rewards) if rewards else None


def _not_comparable(baseline: Evaluation, final: Evaluation, pairs: Sequence[object]) -> str | None:
    """Why the two evaluations must not be compared, or None."""
    tasks = [{task.task: task.prompt_sha256 for task in evaluation.tasks} for evaluation in (baseline, final)]
    if tasks[0] != tasks[1]:
        return "Not comparable: the baseline and the final evaluation did not answer the same tasks."
    if baseline.pass_threshold != final.pass_threshold:
        return "Not comparable: the pass threshold changed between the two evaluations."
    prompts = len(set(tasks[0].values()))
    if prompts < FEWEST_TASKS:
        return f"Not comparable: fewer than {FEWEST_TASKS} held-out tasks; use at least {FEWEST_SIGNIFICANT}."
    if len(pairs) < FEW_GRADED_SHARE * prompts:
        return f"Not comparable: only {len(pairs)} of {prompts} tasks could be graded both times."
    return None


def _outcome(
    fixed: int, broken: int, p_value: float, interval: tuple[float, float] | None
) -> Literal["improved", "worse", "no_significant_change"]:
    """More passes that the mean reward's interval does not bear out are no improvement; fewer are worse anyway."""
    if p_value >= SIGNIFICANCE:
        return "no_significant_change"
    if fixed < broken:
        return "worse"
    return "improved" if interval is not None and interval[0] > 0 else "no_significant_change"


def _sentence(verdict: Verdict, why: str | None) -> str:
    counts = f"{verdict.fixed} of {verdict.tasks} tasks fixed, {verdict.broken} broken (p = {verdict.p_value:.2g})"
    match verdict.outcome:
        case "improved":
            return f"Improved: {counts}, {verdict.change_points:+.1f} points."
        case "worse":
            return f"Worse: {counts}, {verdict.change_points:+.1f} points."
        case _ if verdict.p_value is not None and verdict.p_value < SIGNIFICANCE and verdict.mean_reward_change_ci95:
            low, high = verdict.mean_reward_change_ci95
            doubt = f"but the mean reward changed by {low:+.2g} to {high:+.2g} (95 %)"
            return f"No significant change: {counts}, {doubt}.{f' {why}' if why else ''}"
        case _:
            return f"No significant change: {counts}. {_what_it_would_take(verdict)}{f' {why}' if why else ''}"


def _what_it_would_take(verdict: Verdict) -> str:
    needed = verdict.smallest_significant_fixed
    if needed is None:
        return f"{verdict.tasks} tasks are too few to show any change; use at least {FEWEST_SIGNIFICANT}."
    return f"With {verdict.tasks} tasks, {needed} fixed and none broken is the least that would count."
