"""How what a run taught reads in a terminal."""

from collections.abc import Iterator

from cli.client import LearningView
from core.taught import Bill, Window


def window_rows(report: LearningView) -> list[tuple[str, ...]]:
    return [
        (
            f"{window.from_step}-{window.to_step}",
            _share(window.mixed, window),
            _share(window.all_right, window),
            _share(window.all_wrong, window),
            str(window.prompts),
            str(window.mixed_prompts),
        )
        for window in report.windows
    ]


def learning_lines(report: LearningView) -> Iterator[str]:
    prompts = report.prompts
    yield (
        f"{prompts.seen} prompts: {prompts.ever_mixed.prompts} mixed at least once, {prompts.always_right.prompts} "
        f"always right, {prompts.always_wrong.prompts} always wrong, {prompts.never_mixed.prompts} right or wrong, "
        "never mixed."
    )
    if report.bill is not None:
        yield from _bill_lines(report.bill, report.usd_without_gradient)


def _bill_lines(bill: Bill, usd: float | None) -> Iterator[str]:
    price = f" (${usd:.2f})" if usd else ""
    yield (
        f"{bill.without_gradient_s:.0f} of {bill.seconds:.0f} s ({bill.share:.0%}) bought no gradient{price}: "
        f"generation {bill.generation_s:.0f} s, rewards {bill.reward_s:.0f} s, passes {bill.passes_s:.0f} s, "
        f"rest {bill.other_s:.0f} s."
    )
    if bill.spared_s:
        yield f"The fast path left out passes of about {bill.spared_s:.0f} s more."


def _share(groups: int, window: Window) -> str:
    return f"{groups / window.groups:.0%}" if window.groups else "-"
