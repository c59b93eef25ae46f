"""What to do about what a signal probe found: each advice with its numbers and its fix, the gravest first. Pure."""

from collections.abc import Iterator

from core.builtin_rewards.structure import FormatTags, JsonSchema, JsonValid
from core.signal_report import (
    MOST_PROMPTS,
    Advice,
    AdviceCode,
    FlatCause,
    FlatReason,
    ProbedReward,
    SignalReport,
    SizeEstimate,
)
from core.spec import BuiltinReward, JobSpec

GOOD_SILENT_SHARE = 0.5
"""A job with fewer silent groups is good to go: more than every second group that is generated teaches something."""
MOSTLY = 0.5
"""From this share of groups on, that all passed or all failed, the prompts as a whole are too easy or too hard."""
WORTH_SHARE = 0.1
"""What would change less than a tenth of the groups is not worth a change of the job."""
TRUNCATED_SHARE = 0.1
"""A completion that is cut is graded on what is missing: from a tenth on, length decides and not content."""
FORMAT_SHARE = 0.1
"""With fewer completions in the right format, a group of 8 has none of them more than four times in ten (0.9^8)."""
FORMATS = (FormatTags, JsonValid, JsonSchema)
"""Built-in rewards that ask for a form and not for an answer."""


def advice_on(report: SignalReport, spec: JobSpec) -> tuple[Advice, ...]:
    """`report` has everything but its advice."""
    found = [*_grading(report, spec)]
    if report.graded_groups:
        found += _constant(report) or [*_completions(report, spec), *_prompts(report), *_bigger_group(report)]
        found += _good_to_go(report, found)
    grave = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda advice: grave[advice.severity]))


def _grading(report: SignalReport, spec: JobSpec) -> Iterator[Advice]:
    """What was not graded, and what the job's own rule on that (`core.spec.GradingSpec`) would do."""
    total = report.prompts * report.samples
    if report.failed:
        yield _failed(report, spec.grading.max_error_share, total)
    unanswered = report.ungraded - report.failed
    if unanswered >= WORTH_SHARE * total:
        yield Advice(
            code=AdviceCode.NO_ANSWER,
            severity="warning" if report.graded_groups else "error",
            message=f"To {unanswered} of {total} completions no reward applied: all answered None.",
            fix="Leave out the rows that no reward is meant for, or answer with a number for them.",
        )
    yield from (_gated(reward, total) for reward in report.rewards if _errors(reward) > reward.blanked)


def _failed(report: SignalReport, limit: float, total: int) -> Advice:
    """By what terms count for, as `worker.training.rewards.GradingWatch` does."""
    worst = max(report.rewards, key=lambda reward: reward.blanked)
    stops = report.failed > limit * total
    rule = f" The job would pause at its first step: at most {limit:.0%} may fail." if stops else ""
    return Advice(
        code=AdviceCode.GRADING_ERRORS,
        severity="error" if stops else "warning",
        message=f"{report.failed} of {total} completions could not be graded. `{worst.name}`: "
        f"{worst.last_error}.{rule}",
        fix="Correct the reward and upload it as a new version; an error never counts as 0.",
    )


def _gated(reward: ProbedReward, total: int) -> Advice:
    return Advice(
        code=AdviceCode.GATED_ERRORS,
        severity="info",
        message=f"`{reward.name}` failed on {_errors(reward) - reward.blanked} of {total} completions to which its "
        f"gate was closed: that costs no completion its reward. {reward.last_error}.",
        fix="Nothing, if the gate is there for that.",
    )


def _errors(reward: ProbedReward) -> int:
    """What it said, its gate aside."""
    return reward.user_errors + reward.infrastructure_errors


def _constant(report: SignalReport) -> list[Advice]:
    rewards = {reward for group in report.groups for reward in group.rewards if reward is not None}
    if len(rewards) > 1:
        return []
    graded = report.prompts * report.samples - report.ungraded
    return [
        Advice(
            code=AdviceCode.CONSTANT_REWARD,
            severity="error",
            message=f"All {graded} graded completions got the same reward, {rewards.pop():g}: the job could learn "
            "nothing at all.",
            fix="Try the reward on a completion that should pass and on one that should fail. If it tells them apart, "
            "the prompts are all too hard or too easy for this model.",
        )
    ]


def _completions(report: SignalReport, spec: JobSpec) -> Iterator[Advice]:
    """What the texts themselves are in the way of: cut, all the same, in the wrong format."""
    if report.truncated_share >= TRUNCATED_SHARE:
        length = report.max_completion_length
        whole = report.causes.get(FlatCause.ALL_TRUNCATED, 0)
        yield Advice(
            code=AdviceCode.RAISE_MAX_COMPLETION_LENGTH,
            severity="warning",
            message=f"{report.truncated_share:.0%} of the completions were cut at {length} tokens, and "
            f"{whole} flat groups in all their completions.",
            fix=f"Raise hyperparameters.max_completion_length to {2 * length}, or ask for shorter answers in the "
            "prompt.",
        )
    identical = report.causes.get(FlatCause.IDENTICAL_COMPLETIONS, 0)
    if identical >= WORTH_SHARE * report.graded_groups:
        yield Advice(
            code=AdviceCode.SAMPLING_COLLAPSED,
            severity="warning",
            message=f"In {identical} of {report.prompts} groups all {report.samples} completions are the same text, "
            f"at temperature {report.temperature:g}.",
            fix="Raise hyperparameters.temperature (1.0 samples the model as it is), or use a model that was not "
            "trained so far.",
        )
    yield from (_fix_format(reward) for reward in report.rewards if _misses_format(reward, spec))


def _misses_format(reward: ProbedReward, spec: JobSpec) -> bool:
    """Whether it is a format (one of ours, or what others wait for at a gate) that hardly any completion has."""
    gates = {term.gate.reward for term in spec.rewards if term.gate is not None}
    forms = {
        term.name for term in spec.rewards if isinstance(term, BuiltinReward) and isinstance(term.parameters, FORMATS)
    }
    return reward.name in gates | forms and reward.full_share is not None and reward.full_share < FORMAT_SHARE


def _fix_format(reward: ProbedReward) -> Advice:
    return Advice(
        code=AdviceCode.FIX_FORMAT,
        severity="warning",
        message=f"{reward.full_share:.1%} of the completions have the format that `{reward.name}` asks for.",
        fix="Show the format in the prompt, with an example; check that the reward looks for what the prompt asks.",
    )


def _prompts(report: SignalReport) -> Iterator[Advice]:
    passed, failed, partial = (
        _of(report, reason) for reason in (FlatReason.ALL_PASSED, FlatReason.ALL_FAILED, FlatReason.ALL_EQUAL_PARTIAL)
    )
    groups, each = report.graded_groups, f"by all {report.samples} completions"
    if len(passed) >= MOSTLY * groups:
        yield _about(
            AdviceCode.TOO_EASY,
            f"{len(passed)} of {groups} prompts were solved {each}: the model can already do most of this.",
            "Use harder prompts or a stricter reward.",
        )
    if len(failed) >= MOSTLY * groups:
        yield _about(
            AdviceCode.TOO_HARD,
            f"{len(failed)} of {groups} prompts were failed {each}: the model finds nothing to build on.",
            "Begin with easier prompts, give partial credit, fine-tune on examples first, or use a larger model.",
        )
    if len(passed) >= WORTH_SHARE * groups:
        yield _drop(AdviceCode.DROP_SOLVED_PROMPTS, passed, f"solved {each}", report)
    if len(failed) >= WORTH_SHARE * groups:
        yield _drop(AdviceCode.DROP_UNSOLVED_PROMPTS, failed, f"failed {each}", report)
    if len(partial) >= WORTH_SHARE * groups:
        yield _about(
            AdviceCode.COARSE_REWARD,
            f"In {len(partial)} of {groups} groups all completions got the same partial credit.",
            "Let the reward tell them apart: more steps between 0 and full marks, or a second reward beside it.",
            partial,
        )


def _of(report: SignalReport, reason: FlatReason) -> tuple[int, ...]:
    """Lines of the prompts whose groups are flat for this reason."""
    return tuple(group.row for group in report.groups if group.flat is reason)


def _about(code: AdviceCode, message: str, fix: str, rows: tuple[int, ...] = ()) -> Advice:
    return Advice(code=code, severity="warning", message=message, fix=fix, rows=rows)


def _drop(code: AdviceCode, rows: tuple[int, ...], what: str, report: SignalReport) -> Advice:
    share = len(rows) / report.graded_groups
    alike = round(share * report.training_rows)
    return Advice(
        code=code,
        severity="info",
        message=f"{len(rows)} of {report.graded_groups} prompts were {what}, so about {alike} of the "
        f"{report.training_rows} training rows are: {share:.0%} of the work would teach nothing.",
        fix=f"Leave such rows out. `rows` has those that were found; more `prompts` (up to {MOST_PROMPTS}) find more.",
        rows=rows,
    )


def _bigger_group(report: SignalReport) -> Iterator[Advice]:
    """The smallest larger group that is worth it, where too many groups are silent."""
    now = _own_size(report)
    if now.silent_share <= GOOD_SILENT_SHARE:
        return
    larger = (size for size in report.sizes if size.num_generations > now.num_generations)
    better = next((size for size in larger if size.silent_share <= now.silent_share - WORTH_SHARE), None)
    if better is None:
        return
    now_costs, then_costs = (_completions_per_signal(size) for size in (now, better))
    yield Advice(
        code=AdviceCode.BIGGER_GROUP,
        severity="info",
        message=f"With num_generations {better.num_generations} about {better.silent_share:.0%} of the groups would "
        f"be silent instead of {now.silent_share:.0%}; one with signal then costs {then_costs} completions instead of "
        f"{now_costs}.",
        fix=f"Set hyperparameters.num_generations to {better.num_generations}, and probe with as many `samples` to be "
        "sure.",
    )


def _completions_per_signal(size: SizeEstimate) -> str:
    return "ever more" if size.completions_per_signal is None else f"{size.completions_per_signal:.0f}"


def _own_size(report: SignalReport) -> SizeEstimate:
    """What to expect of groups as large as the job's."""
    return next(size for size in report.sizes if size.num_generations == report.num_generations)


def _good_to_go(report: SignalReport, found: list[Advice]) -> list[Advice]:
    own = _own_size(report)
    if own.silent_share > GOOD_SILENT_SHARE or any(advice.severity == "error" for advice in found):
        return []
    low, high = own.silent_share_ci95
    return [
        Advice(
            code=AdviceCode.GOOD_TO_GO,
            severity="info",
            message=f"{1 - own.silent_share:.0%} of the groups carry signal (95 % interval {1 - high:.0%} to "
            f"{1 - low:.0%}): enough to train on.",
            fix="Submit the job.",
        )
    ]
