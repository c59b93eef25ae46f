"""Numbers that are missing, not finite, or of nothing: each gets an answer, and no rule breaks on them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.learning.bill import bill_of
from core.learning.findings import learning_findings
from core.learning.numbers import HeldOutScore, RunNumbers, StepNumbers
from core.run_facts import held_out_score
from tests.factories import make_spec
from tests.unit.learning.runs import ASKED, HEALTHY, HELD_OUT, run_of
from tests.unit.test_verdict import RIGHT, WRONG, evaluation

ODD = [None, 0.0, -1.0, 1e308, -1e308, float("inf"), float("-inf"), float("nan")]
NAMES = [*HEALTHY, "sampling/sampling_logp_difference/mean", "watch/death_date/rows", "watch/death_date/null_share"]


def codes(run: RunNumbers) -> list[str]:
    return [finding.code for finding in learning_findings(run)]


def test_where_every_number_is_lost_that_is_the_one_thing_said():
    run = run_of()
    lost = [StepNumbers(one.step, dict.fromkeys(one.metrics)) for one in run.steps]
    (finding,) = learning_findings(RunNumbers(lost, HELD_OUT, ASKED))
    assert (finding.code, finding.since_step, finding.evidence) == ("not_a_number", 1, {"steps": 100})


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", NAMES)
def test_no_rule_breaks_on_one_odd_metric(name: str, odd: float | None):
    steps = [replace(one, metrics={**one.metrics, name: odd}) for one in run_of().steps]
    learning_findings(RunNumbers(steps, HELD_OUT, ASKED))
    bill_of(steps)


@settings(max_examples=40)
@given(st.lists(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*ODD, 0.5, 1.0])), max_size=25))
def test_no_rule_breaks_on_any_mixture(metrics: list[dict[str, float | None]]):
    steps = [StepNumbers(number, one) for number, one in enumerate(metrics, start=1)]
    learning_findings(RunNumbers(steps, HELD_OUT, ASKED))
    bill_of(steps)


def test_with_two_held_out_tasks_it_is_said_that_they_show_little():
    two = (HeldOutScore("baseline", 0, 2, 1, 0.5), HeldOutScore("final", 100, 2, 2, 1.0))
    (finding,) = learning_findings(run_of(held_out=two))
    assert (finding.code, finding.evidence) == ("few_held_out_tasks", {"tasks": 2})


def test_many_rows_of_ten_prompts_are_ten_tasks():
    rows = evaluation([RIGHT] * 36 + [WRONG] * 34)
    tasks = tuple(row.model_copy(update={"prompt_sha256": f"{row.task % 10:064x}"}) for row in rows.tasks)
    score = held_out_score("baseline", rows.model_copy(update={"tasks": tasks}), make_spec())
    assert (score.tasks, score.passed) == (10, 6)
    (finding,) = learning_findings(run_of(held_out=(score,)))
    assert (finding.code, finding.evidence) == ("few_held_out_tasks", {"tasks": 10})


def test_a_prompt_that_stands_in_many_rows_counts_once_in_the_mean_reward():
    rows = evaluation([RIGHT, RIGHT, RIGHT, WRONG])
    tasks = tuple(row.model_copy(update={"prompt_sha256": f"{row.task // 3:064x}"}) for row in rows.tasks)
    score = held_out_score("baseline", rows.model_copy(update={"tasks": tasks}), make_spec())
    assert score.mean_reward == 0.5


def test_where_no_held_out_answer_could_be_graded_it_is_not_called_few_tasks():
    none = (HeldOutScore("baseline", 0, 0, 0, None), HeldOutScore("final", 100, 0, 0, None))
    assert codes(run_of(held_out=none)) == ["held_out_ungraded"]


def test_where_every_grader_fails_that_is_found():
    """TRL's reward of a step without a grade is not a number; the shares of silent groups are absent then."""
    broken = run_of(
        grader__error_share=lambda _: 1.0,
        reward=None,
        signal__silent_share=None,
        signal__silent_all_right=None,
        signal__silent_all_wrong=None,
        held_out=(HeldOutScore("baseline", 0, 0, 0, None),),
    )
    assert codes(broken) == ["held_out_ungraded", "grader_errors"]


def test_no_step_and_no_evaluation_is_no_finding():
    assert learning_findings(RunNumbers([], (), ASKED)) == []
