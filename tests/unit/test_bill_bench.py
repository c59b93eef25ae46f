"""What `podium bench bill` reckons."""

import pytest

from bench.bill import BILL_S, ESTIMATES_S, FIXED_S, SILENT, bill_s, row


@pytest.mark.parametrize("percent", ESTIMATES_S)
def test_the_count_of_operations_confirms_the_reckoning_by_tokens(percent: int) -> None:
    assert bill_s(percent / 100) == pytest.approx(ESTIMATES_S[percent], rel=0.05)


def test_all_silent_what_is_left_is_what_passes_do_not_take() -> None:
    assert bill_s(1.0) == FIXED_S == 710


def test_the_rows_get_shorter() -> None:
    seconds = [row(percent)["bill_s"] for percent in SILENT]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] < BILL_S / 3
