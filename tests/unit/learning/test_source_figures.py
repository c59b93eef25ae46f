"""The figures of the source documents on one measured run, as its numbers would have come in."""

import pytest

from core.learning.bill import bill_of
from core.learning.findings import learning_findings
from core.learning.groups import StepGroups, windows_of
from core.learning.numbers import RunNumbers, StepNumbers
from core.signal import GroupOutcome
from tests.unit.learning.runs import ASKED

PROMPTS = 100
SILENT = {
    "plain": (80, 97, 98),
    "another seed": (70, 95, 96),
    "hard prompts only": (54, 91, 94),
    "after more SFT": (84, 97, 96),
}
"""Percent of the groups in the first, the middle and the last tenth of the steps."""
BILL = {
    "generation": 393,
    "weight_sync": 79,
    "rest": 94 + 88,
    "reward": 18,
    "logprobs_no_grad": 1861,
    "forward": 1916,
    "backward": 4360,
}
SHARES = {"generation": 4.4, "reward": 0.2, "passes": 92.0}
"""Percent of 8,847 s; the passes are the one without a gradient, forward and backward."""


def test_131_of_240_steps_without_a_gradient_are_found():
    steps = [StepNumbers(step, {"grad_norm": 0.0 if step % 240 < 131 else 0.2, "loss": 0.0}) for step in range(240)]
    (finding,) = learning_findings(RunNumbers(steps, (), ASKED))
    assert (finding.code, finding.evidence) == ("steps_without_gradient", {"steps": 240, "without_gradient": 131})


@pytest.mark.parametrize("name", SILENT)
def test_the_windows_show_how_the_groups_fell_silent(name: str):
    first, middle, last = SILENT[name]
    tenths = [first, *[middle] * 8, last]
    steps = [
        StepGroups(
            step,
            {
                GroupOutcome.ALL_RIGHT: list(range(tenths[step // 10])),
                GroupOutcome.MIXED: list(range(tenths[step // 10], PROMPTS)),
            },
        )
        for step in range(100)
    ]
    windows = windows_of(steps)
    silent = [round(100 * (1 - window.mixed / window.groups)) for window in windows]
    assert (silent[0], silent[5], silent[-1]) == (first, middle, last)


@pytest.mark.parametrize("name", SILENT)
def test_such_silence_is_found(name: str):
    first, middle, last = SILENT[name]
    tenths = [first, *[middle] * 8, last]
    shares = [tenths[step // 24] / 100 for step in range(240)]
    steps = [
        StepNumbers(step, {"signal/silent_share": share, "signal/silent_all_right": share, "grad_norm": 0.1})
        for step, share in enumerate(shares)
    ]
    (finding,) = learning_findings(RunNumbers(steps, (), ASKED))
    assert finding.code == "all_right"
    assert finding.since_step == pytest.approx(0 if first >= 80 else 24, abs=5)


def test_of_a_run_without_signal_nine_tenths_would_have_gone_into_passes():
    phases = {f"phase/{name}_s": float(seconds) for name, seconds in BILL.items()}
    step = StepNumbers(1, {**phases, "phase/total_s": 8847.0, "signal/silent_share": 1.0, "grad_norm": 0.0})
    bill = bill_of([step])
    assert bill is not None
    spent = {"generation": bill.generation_s, "reward": bill.reward_s, "passes": bill.passes_s}
    assert {name: round(100 * seconds / bill.seconds, 1) for name, seconds in spent.items()} == SHARES


def test_with_trl_alone_nine_tenths_of_silence_cost_nine_tenths_of_the_passes():
    phases = {f"phase/{name}_s": float(seconds) for name, seconds in BILL.items()}
    step = StepNumbers(1, {**phases, "phase/total_s": 8847.0, "signal/silent_share": 0.9, "grad_norm": 0.1})
    bill = bill_of([step])
    assert bill is not None
    assert bill.passes_s == pytest.approx(0.9 * 8137)
    assert bill.generation_s + bill.reward_s == pytest.approx(0.9 * 411)
    assert bill.share == pytest.approx(0.87, abs=0.005)
