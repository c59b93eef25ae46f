"""From graded groups to the report of a signal probe. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from core.results import Environment, PhaseSeconds
from core.signal_report import FlatReason, ProbedPrompt, ProbedReward, ProbeSize, SignalReport
from core.spec import JobSpec, RewardTerm
from core.verdict import wilson
from worker.grading.grades import Grade, GradeOutcome
from worker.training.rewards import Scored
from worker.training.signal_advice import advice_on
from worker.training.signal_maths import Group, estimate_sizes, flat_causes, flat_reason, pass_rate_histogram

MOST_ERROR = 500
"""Characters of what a reward said when it failed."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe has seen."""

    groups: Sequence[Group]
    scored: Sequence[Scored]
    """Every completion, in the order of the groups."""
    training_rows: int
    time: PhaseSeconds
    environment: Environment


def summarise(probed: Probed, spec: JobSpec, size: ProbeSize) -> SignalReport:
    prompts = tuple(_prompt(group, spec.pass_threshold) for group in probed.groups)
    report = SignalReport(
        sentence="",
        advice=(),
        prompts=len(prompts),
        training_rows=probed.training_rows,
        samples=size.samples,
        pass_threshold=spec.pass_threshold,
        **_asked(spec),
        **_shares(prompts),
        **_completions(probed.groups),
        failed=sum(score.error is not None for score in probed.scored),
        sizes=estimate_sizes(probed.groups, samples=size.samples, num_generations=spec.hyperparameters.num_generations),
        rewards=tuple(_reward(term, probed.scored) for term in spec.rewards),
        groups=prompts,
        time=probed.time,
        environment=probed.environment,
    )
    return report.model_copy(update={"sentence": _sentence(report), "advice": advice_on(report, spec)})


def _asked(spec: JobSpec) -> dict[str, Any]:
    """How the job samples."""
    wanted = spec.hyperparameters
    return {
        "seed": spec.seed,
        "num_generations": wanted.num_generations,
        "temperature": wanted.temperature,
        "top_p": wanted.top_p,
        "max_completion_length": wanted.max_completion_length,
    }


def _shares(prompts: Sequence[ProbedPrompt]) -> dict[str, Any]:
    """What groups teach, and how often prompts were solved."""
    graded = [prompt for prompt in prompts if prompt.flat is not FlatReason.UNGRADED]
    silent = sum(prompt.flat is not None for prompt in graded)
    return {
        "graded_groups": len(graded),
        "silent_groups": silent,
        "silent_share": silent / len(graded) if graded else None,
        "silent_share_ci95": wilson(silent, len(graded)),
        "flat": Counter(prompt.flat for prompt in prompts if prompt.flat is not None),
        "causes": Counter(cause for prompt in prompts for cause in prompt.causes),
        "pass_rates": pass_rate_histogram([(prompt.passed, _graded(prompt)) for prompt in graded]),
        "mean_pass_rate": fmean(prompt.passed / _graded(prompt) for prompt in graded) if graded else None,
    }


def _completions(groups: Sequence[Group]) -> dict[str, Any]:
    samples = [sample for group in groups for sample in group.samples]
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    return {
        "mean_reward": fmean(rewards) if rewards else None,
        "ungraded": len(samples) - len(rewards),
        "truncated_share": fmean(sample.is_truncated for sample in samples),
        "mean_prompt_tokens": fmean(group.prompt_tokens for group in groups),
        "mean_completion_tokens": fmean(sample.tokens for sample in samples),
    }


def _prompt(group: Group, pass_threshold: float) -> ProbedPrompt:
    reason = flat_reason(group.rewards, pass_threshold)
    return ProbedPrompt(
        row=group.row,
        rewards=tuple(sample.reward for sample in group.samples),
        passed=sum(reward >= pass_threshold for reward in group.rewards),
        flat=reason,
        causes=() if reason is None else flat_causes(group.samples),
        prompt_tokens=group.prompt_tokens,
        mean_completion_tokens=fmean(sample.tokens for sample in group.samples),
        truncated=sum(sample.is_truncated for sample in group.samples),
    )


def _graded(prompt: ProbedPrompt) -> int:
    return sum(reward is not None for reward in prompt.rewards)


def _reward(term: RewardTerm, scored: Sequence[Scored]) -> ProbedReward:
    grades = [score.grades[term.name] for score in scored]
    values = [grade.value for grade in grades if grade.value is not None]
    outcomes = Counter(grade.outcome for grade in grades)
    errors = [grade.message or grade.outcome.value for grade in grades if grade.is_error]
    return ProbedReward(
        name=term.name,
        mean=fmean(values) if values else None,
        least=min(values, default=None),
        most=max(values, default=None),
        full_share=fmean(value >= term.best for value in values) if values else None,
        scored=len(values),
        no_answer=outcomes[GradeOutcome.NO_ANSWER],
        user_errors=outcomes[GradeOutcome.USER_ERROR],
        infrastructure_errors=outcomes[GradeOutcome.INFRASTRUCTURE_ERROR],
        blanked=sum(_counted(score, term).is_error for score in scored),
        timed_out=sum(grade.timed_out for grade in grades),
        last_error=errors[-1][:MOST_ERROR] if errors else None,
    )


def _counted(score: Scored, term: RewardTerm) -> Grade:
    return (score.grades if score.counted is None else score.counted)[term.name]


def _sentence(report: SignalReport) -> str:
    if report.silent_share is None or report.silent_share_ci95 is None:
        return f"Not one of {report.prompts * report.samples} completions has a reward."
    low, high = report.silent_share_ci95
    reasons = [f"{count} {reason.replace('_', ' ')}" for reason, count in report.flat.items()]
    return (
        f"{report.silent_groups} of {report.graded_groups} groups of {report.samples} would teach nothing "
        f"({report.silent_share:.0%}; 95 % interval {low:.0%} to {high:.0%})"
        f"{': ' if reasons else ''}{', '.join(reasons)}."
    )
