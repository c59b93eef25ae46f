"""When a figure of `podium bench grading` meets its goal."""

import pytest

from bench.grading import _alone, _row

FAST, SLOW = 60_000.0, 40_000.0


@pytest.mark.parametrize(
    ("pairs", "met"),
    [
        ([(FAST, FAST)], True),
        ([(SLOW, SLOW)], False),
        ([(FAST, 2 * FAST)], False),
        ([(FAST, FAST), (FAST, FAST), (SLOW, 10 * FAST)], True),
    ],
    ids=["both", "too few", "the sandbox costs more than a tenth", "medians decide"],
)
def test_a_rate_needs_its_number_and_its_ratio(pairs: list[tuple[float, float]], met: bool) -> None:
    row = _row("gradings/s", pairs, at_least=50_000)
    assert (row["met"], row["goal"]) == (met, ">= 50,000, ratio >= 0.9")


def test_a_start_needs_its_time_alone() -> None:
    assert _row("cold start, ms", [(140.0, 20.0)], at_most=150)["met"]
    assert not _row("cold start, ms", [(160.0, 150.0)], at_most=150)["met"]


def test_a_figure_without_a_counterpart_has_its_time_as_goal_or_none() -> None:
    assert _alone("recovery", 900.0, at_most=1_000)["met"] is True
    assert _alone("recovery", 1_100.0, at_most=1_000)["met"] is False
    assert _alone("median", 1e9)["met"] == "-"
