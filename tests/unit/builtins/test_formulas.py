import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.formulas import FormulaError, parse_formula


@pytest.mark.parametrize(
    ("text", "scores", "wanted"),
    [
        ("(a + b) / 2", {"a": 1, "b": 0}, 0.5),
        ("0.7*a - -b", {"a": 1, "b": 1}, 1.7),
        ("a^2 + b", {"a": 3, "b": 1}, 10),  # not a ^ (2 + b)
        ("2 ** a", {"a": 0.5}, math.sqrt(2)),
        ("min(a, b, 0.5) + max(a, b)", {"a": 1, "b": 0}, 1),
        ("abs(a) + floor(a) + ceil(a)", {"a": -1.5}, 1.5 - 2 - 1),
        ("exp(a) + sqrt(b) + log(b)", {"a": 0, "b": 1}, 2),
        ("a", {"a": 0.25}, 0.25),
    ],
)
def test_formulas_are_arithmetic(text: str, scores: Mapping[str, float], wanted: float) -> None:
    assert parse_formula(text).evaluate(scores) == pytest.approx(wanted)


@pytest.mark.parametrize("text", ["1 / a", "log(a)", "sqrt(a - 1)", "(a - 1) ^ 0.5", "exp(1000 + a)", "1e308 * 10 + a"])
def test_a_formula_without_a_finite_value_says_so(text: str) -> None:
    with pytest.raises(FormulaError, match=r".+: .+"):
        parse_formula(text).evaluate({"a": 0.0})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 + 2",
        "a +",
        "__import__('os').system('true')",
        "a.real",
        "a if b else c",
        "a < b",
        "[a]",
        "'a'",
        "True",
        "1j * a",
        "f(a)",
        "min(a)",
        "abs(a, b)",
        "min(*a)",
        "max(a, key=b)",
        "min + a",
        "a % b",
        "a // b",
        "a; b",
        "lambda: a",
        "(a := 1)",
        "10" * 400 + "0 + a",
        "(" * 500 + "a" + ")" * 500,
        "-" * 999 + "a",
        "a\0",
        "a" * 1001,
    ],
)
def test_anything_else_is_refused_when_it_is_parsed(text: str) -> None:
    with pytest.raises(FormulaError):
        parse_formula(text)


@given(st.text(alphabet="ab01.+-*/^(), minexpflorsqtg"), st.floats(0, 1), st.floats(0, 1))
def test_no_text_does_more_than_be_refused_or_computed(text: str, a: float, b: float) -> None:
    try:
        formula = parse_formula(text)
        value = formula.evaluate(dict.fromkeys(formula.names, a) | {"b": b})
    except FormulaError:
        return
    assert math.isfinite(value)


@pytest.mark.parametrize(("text", "best"), [("0.5*a + 0.5*b", 1.0), ("a - 0.2*b", 1.0), ("a * (1 - a)", 0.0)])
def test_the_best_value_is_found_among_perfect_and_useless_scores(text: str, best: float) -> None:
    assert parse_formula(text).best() == best


def test_a_formula_without_a_value_at_perfect_and_useless_scores_has_no_best() -> None:
    with pytest.raises(FormulaError):
        parse_formula("log(a - 1)").best()
