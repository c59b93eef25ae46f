"""What each reward term of a rollout counts for: formulas computed, gates asked. Pure; beside `grades.combine`.

A gated term counts for what it says where the gating term counts for at least `at_least`. Elsewhere:

    the gating term counts for less     the term counts for 0, whatever it said, an error too: the sum is known without
                                        it, and a reward that cannot read what fails the gate costs no rollout
    the gating term has no answer       the term has no answer either
    the gating term failed              the rollout has no reward, as with every failed term

Terms look only at terms that stand before them, at what those count for: gates may be chained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.builtin_rewards.comparison import FormulaReward
from core.formulas import Formula, FormulaError
from core.spec import BuiltinReward, Gate, RewardTerm
from worker.grading.grades import Grade, GradeOutcome
from worker.grading.values import UnusableRewardError, to_number

CLOSED = Grade(GradeOutcome.SCORED, 0.0)


@dataclass(frozen=True, slots=True)
class Settled:
    """By the name of the term, in the job's order."""

    grades: Mapping[str, Grade]
    """What each said, for the record; formulas say what they compute."""
    counted: Mapping[str, Grade]
    """What each counts for: `combine(counted, weights)` is the reward."""


def formula_of(term: RewardTerm) -> Formula | None:
    """The formula that the term is; such terms have no grader."""
    if isinstance(term, BuiltinReward) and isinstance(term.parameters, FormulaReward):
        return term.parameters.formula
    return None


class Settlement:
    """The rules of a job's terms, read once."""

    def __init__(self, terms: Sequence[RewardTerm]) -> None:
        self._terms = [(term.name, formula_of(term), term.gate) for term in terms]

    def settle(self, said: Mapping[str, Grade]) -> Settled:
        """`said`: the grades of one rollout by all terms that have a grader."""
        grades: dict[str, Grade] = {}
        counted: dict[str, Grade] = {}
        for name, formula, gate in self._terms:
            grades[name] = said[name] if formula is None else _compute(formula, counted)
            counted[name] = grades[name] if gate is None else _pass(grades[name], gate, counted[gate.reward])
        return Settled(grades, counted)


def _pass(grade: Grade, gate: Gate, key: Grade) -> Grade:
    if key.is_error:
        return grade
    if key.value is None:
        return Grade(GradeOutcome.NO_ANSWER)
    return grade if key.value >= gate.at_least else CLOSED


def _compute(formula: Formula, counted: Mapping[str, Grade]) -> Grade:
    scores: dict[str, float] = {}
    for name in formula.names:
        grade = counted[name]
        if grade.is_error:
            return Grade(grade.outcome, message=f"`{name}`, which the formula reads, failed")
        if grade.value is not None:
            scores[name] = grade.value
    if len(scores) < len(formula.names):
        return Grade(GradeOutcome.NO_ANSWER)
    try:
        return Grade(GradeOutcome.SCORED, to_number(formula.evaluate(scores)))
    except (FormulaError, UnusableRewardError) as error:
        return Grade(GradeOutcome.USER_ERROR, message=str(error))
