"""How held-out evaluations, and a verdict on two of them, read in a terminal."""

import pytest

from app.evaluations.schemas import EXAMPLE
from cli.client import ComparisonView, EvaluationsView
from cli.evaluations import comparison_lines, evaluation_rows
from core.verdict import score
from tests.unit.test_verdict import RIGHT, UNGRADED, WRONG, evaluation

GREEDY = [RIGHT] * 15 + [WRONG] * 5
SAMPLED = [[0.0], [0.5]] * 10


def listed(decoding: str | None = "greedy") -> EvaluationsView:
    scores = [score("baseline", evaluation([UNGRADED] * 2)), score("step-2", evaluation(GREEDY, SAMPLED, step=2))]
    data = [one.model_dump(mode="json") for one in scores]
    return EvaluationsView.model_validate({"decoding": decoding, "best": "step-2", "data": data})


@pytest.mark.parametrize(
    ("decoding", "mean"),
    [("greedy", ("0.750", "0.555 to 0.945")), ("sampled", ("0.250", "0.138 to 0.362"))],
)
def test_an_evaluation_is_a_row_with_its_intervals_and_the_best_is_marked(decoding, mean):
    heading, baseline, second = evaluation_rows(listed(decoding))
    assert heading[6] == f"mean reward, {decoding}"
    assert baseline == ("baseline", "0", "0/0", "-", "0/0", "-", "-", "-", "")
    assert second == ("step-2", "2", "15/20", "53 to 89 %", "0/20", "0 to 16 %", *mean, "best")


def test_a_comparison_names_both_sides_and_ends_with_the_verdict():
    assert comparison_lines(ComparisonView.model_validate(EXAMPLE)) == [
        "before    baseline of ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d (step 0)",
        "after     step-50 of ftjob-0197f0a4c1e27b6a9d0f3c5e8a1b2c3d (step 50)",
        "fixed     40 of 200 tasks failed before and pass now (greedy)",
        "broken    4 of 200 tasks passed before and fail now (greedy)",
        "p         1.2e-08 (exact two-sided McNemar test)",
        "Improved: 40 of 200 tasks fixed, 4 broken (p = 1.2e-08), +18.0 points.",
    ]
