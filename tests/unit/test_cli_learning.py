"""How what a run taught reads in a terminal."""

from app.learning.schemas import EXAMPLE
from cli.client import LearningView
from cli.learning import learning_lines, window_rows

REPORT = LearningView.model_validate(EXAMPLE)


def test_a_window_is_a_row_of_shares():
    assert window_rows(REPORT) == [("1-6", "65%", "31%", "4%", "48", "31")]


def test_prompts_and_bill_are_a_sentence_each():
    assert list(learning_lines(REPORT)) == [
        "5 prompts: 2 mixed at least once, 1 always right, 1 always wrong, 1 right or wrong, never mixed.",
        "60 of 240 s (25%) bought no gradient ($0.04): generation 57 s, rewards 2 s, passes 0 s, rest 1 s.",
        "The fast path left out passes of about 91 s more.",
    ]


def test_before_the_first_step_there_are_only_prompts():
    empty = REPORT.model_copy(update={"bill": None, "windows": []})
    assert window_rows(empty) == []
    assert len(list(learning_lines(empty))) == 1


def test_without_a_price_none_is_named():
    free = REPORT.model_copy(update={"usd_without_gradient": 0.0})
    assert "$" not in list(learning_lines(free))[1]
