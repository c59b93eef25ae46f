from typing import Any

import pytest

from core.builtin_rewards.catalogue import parse_builtin
from core.spec import BuiltinReward, Gate
from tests.factories import make_reward
from worker.grading.gates import Settlement
from worker.grading.grades import Grade, GradeOutcome, combine

NOTHING = Grade(GradeOutcome.NO_ANSWER)
BROKEN = Grade(GradeOutcome.USER_ERROR, message="KeyError: 'x'")
DOWN = Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message="gave no answer")


def scored(value: float) -> Grade:
    return Grade(GradeOutcome.SCORED, value)


def gated(name: str, key: str, at_least: float = 1.0, **changes: Any) -> Any:
    return make_reward(name, gate=Gate(reward=key, at_least=at_least), **changes)


def formula(expression: str, **changes: Any) -> BuiltinReward:
    parameters = parse_builtin({"builtin": "formula", "expression": expression})
    return BuiltinReward(name="total", parameters=parameters, **changes)


def reward(terms: list[Any], **said: Grade) -> float | None:
    settled = Settlement(terms).settle(said)
    assert {name: settled.grades[name] for name in said} == said, "the record keeps what each said"
    return combine(settled.counted, {term.name: term.weight for term in terms})


@pytest.mark.parametrize(
    ("key", "answer", "wanted"),
    [
        (scored(1.0), scored(0.5), 1.5),
        (scored(2.0), scored(0.5), 2.5),
        (scored(0.9), scored(0.5), 0.9),
        (scored(0.9), NOTHING, 0.9),
        (scored(1.0), NOTHING, 1.0),
        (scored(0.0), BROKEN, 0.0),  # closed: known without the term that failed
        (scored(1.0), BROKEN, None),
        (NOTHING, scored(0.5), None),  # not applicable: and so nothing is known
        (NOTHING, BROKEN, None),
        (BROKEN, scored(0.5), None),
        (DOWN, scored(0.5), None),
    ],
)
def test_a_gated_term_counts_where_the_gating_term_reaches_its_value(
    key: Grade, answer: Grade, wanted: float | None
) -> None:
    assert reward([make_reward("format"), gated("answer", "format")], format=key, answer=answer) == wanted


def test_a_gating_term_of_weight_zero_only_decides() -> None:
    terms = [make_reward("format", weight=0.0), gated("answer", "format", 0.5)]
    assert reward(terms, format=scored(0.5), answer=scored(0.7)) == 0.7
    assert reward(terms, format=scored(0.4), answer=scored(0.7)) == 0.0


def test_gates_are_chained_by_what_terms_count_for() -> None:
    terms = [make_reward("format"), gated("tests", "format"), gated("brevity", "tests")]
    assert reward(terms, format=scored(0.0), tests=scored(1.0), brevity=scored(1.0)) == 0.0
    assert reward(terms, format=scored(1.0), tests=scored(1.0), brevity=scored(1.0)) == 3.0


def test_a_formula_computes_what_earlier_terms_count_for() -> None:
    terms = [make_reward("a", weight=0.0), gated("b", "a", weight=0.0), formula("2 * a + b ^ 2")]
    assert reward(terms, a=scored(1.0), b=scored(3.0)) == 11.0
    assert reward(terms, a=scored(0.5), b=scored(3.0)) == 1.0


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (NOTHING, GradeOutcome.NO_ANSWER),
        (BROKEN, GradeOutcome.USER_ERROR),
        (DOWN, GradeOutcome.INFRASTRUCTURE_ERROR),
        (scored(0.0), GradeOutcome.USER_ERROR),  # a division by zero
        (scored(2.0), GradeOutcome.SCORED),
    ],
)
def test_a_formula_has_a_value_only_where_all_it_reads_have(said: Grade, outcome: GradeOutcome) -> None:
    settled = Settlement([make_reward("a", weight=0.0), formula("1 / a")]).settle({"a": said})
    assert settled.grades["total"].outcome is outcome


def test_a_formula_can_be_gated() -> None:
    terms = [make_reward("a"), formula("a * 10", gate=Gate(reward="a", at_least=0.5))]
    assert reward(terms, a=scored(0.5)) == 5.5
    assert reward(terms, a=scored(0.4)) == 0.4
