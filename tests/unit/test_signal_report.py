"""The report of a signal probe: its figures, its advice with numbers, and the schema that is published."""

import json

import pytest
from jsonschema import Draft202012Validator

from core.builtin_rewards.catalogue import parse_builtin
from core.settings import CHECKOUT
from core.signal_report import AdviceCode, FlatCause, FlatReason, SignalReport, json_schema
from core.spec import BuiltinReward, Gate
from tests.factories import make_reward, make_spec
from tests.signal_reports import ALWAYS, HALF, MIXED, NEVER, SAMPLES, hyperparameters, make_report, settle
from worker.grading.grades import Grade, GradeOutcome
from worker.training.failures import GradingUnreliable
from worker.training.rewards import GradingWatch


def advice(report: SignalReport) -> dict[AdviceCode, str]:
    return {advice.code: advice.message for advice in report.advice}


def test_the_figures_of_a_small_probe_worked_out_by_hand():
    report = make_report(ALWAYS, NEVER, MIXED, MIXED, HALF)
    assert (report.prompts, report.graded_groups, report.silent_groups) == (5, 5, 3)
    assert report.silent_share == 0.6
    assert report.silent_share_ci95 == pytest.approx((0.2307, 0.8824), abs=1e-4), "Wilson's of 3 in 5"
    assert report.flat == {FlatReason.ALL_PASSED: 1, FlatReason.ALL_FAILED: 1, FlatReason.ALL_EQUAL_PARTIAL: 1}
    assert report.mean_pass_rate == pytest.approx((1 + 0 + 0.5 + 0.5 + 0) / 5)
    assert report.mean_reward == pytest.approx((4 + 0 + 2 + 2 + 2) / 20)
    assert (report.mean_prompt_tokens, report.mean_completion_tokens, report.truncated_share) == (10, 2.5, 0)
    assert {(one.low, one.high): one.prompts for one in report.pass_rates if one.prompts} == {
        (0, 0): 2,
        (0.4, 0.5): 2,
        (1, 1): 1,
    }
    assert [(group.row, group.passed, group.flat) for group in report.groups] == [
        (1, 4, FlatReason.ALL_PASSED),
        (2, 0, FlatReason.ALL_FAILED),
        (3, 2, None),
        (4, 2, None),
        (5, 0, FlatReason.ALL_EQUAL_PARTIAL),
    ]
    assert report.sentence == (
        "3 of 5 groups of 4 would teach nothing (60%; 95 % interval 23% to 88%): "
        "1 all passed, 1 all failed, 1 all equal partial."
    )


def test_the_document_keeps_the_published_schema_and_comes_back_as_it_went_out():
    report = make_report(ALWAYS, NEVER, [None, None, None, 1.0], MIXED)
    text = report.model_dump_json()
    Draft202012Validator(json.loads(json_schema())).validate(json.loads(text))
    assert SignalReport.model_validate_json(text) == report


def test_the_published_schema_is_the_one_of_the_code():
    assert (CHECKOUT / "docs/signal-report.schema.json").read_text() == json_schema()


def test_groups_without_a_reward_are_shown_but_take_no_part_in_the_share():
    report = make_report([None] * 4, [None, None, None, 1.0], MIXED)
    assert (report.graded_groups, report.silent_groups, report.ungraded) == (2, 1, 7)
    assert report.flat == {FlatReason.UNGRADED: 1, FlatReason.SINGLE_GRADED: 1}


def test_where_nothing_was_graded_the_errors_are_the_result():
    report = make_report([None] * 4, [None] * 4)
    assert report.silent_share is None
    assert report.silent_share_ci95 is None
    assert report.sizes == ()
    assert report.sentence == "Not one of 8 completions has a reward."
    (only,) = report.advice
    assert (only.code, only.severity) == (AdviceCode.GRADING_ERRORS, "error")
    assert "8 of 8" in only.message
    assert "KeyError: 'answer'" in only.message


GATED = make_spec(
    hyperparameters=hyperparameters(), rewards=(make_reward("tags"), make_reward("parse", gate=Gate(reward="tags")))
)


def gated(*, without_tags: float) -> tuple[list[float | None], dict[str, list[Grade]]]:
    """Rewards, and what terms said: 4 of 20 have tags; on the others, which `tags` gives so much, `parse` raises."""
    scored = Grade(GradeOutcome.SCORED, 1.0)
    tags = [scored, *[Grade(GradeOutcome.SCORED, without_tags)] * 4] * 4
    parse = [scored, *[Grade(GradeOutcome.USER_ERROR, message="ValueError: no tags")] * 4] * 4
    others = without_tags if without_tags < 1 else None
    return [2.0, *[others] * 4] * 4, {"tags": tags, "parse": parse}


def gated_report(rewards: list[float | None], grades: dict[str, list[Grade]]) -> SignalReport:
    groups = [rewards[start : start + SAMPLES] for start in range(0, len(rewards), SAMPLES)]
    return make_report(*groups, spec=GATED, grades=grades)


def test_errors_behind_a_closed_gate_cost_nothing_and_are_told_as_information():
    rewards, grades = gated(without_tags=0.0)
    GradingWatch(GATED.grading).check(settle(grades, rewards, GATED), step=1)
    report = gated_report(rewards, grades)
    assert (report.failed, report.ungraded) == (0, 0)
    (parse,) = (reward for reward in report.rewards if reward.name == "parse")
    assert (parse.user_errors, parse.blanked) == (16, 0)
    found = {one.code: one for one in report.advice}
    assert AdviceCode.GRADING_ERRORS not in found
    assert found[AdviceCode.GATED_ERRORS].severity == "info"
    assert found[AdviceCode.GATED_ERRORS].message == (
        "`parse` failed on 16 of 20 completions to which its gate was closed: that costs no completion its reward. "
        "ValueError: no tags."
    )
    assert AdviceCode.GOOD_TO_GO in found


def test_errors_behind_an_open_gate_pause_the_job_by_its_own_rule():
    rewards, grades = gated(without_tags=1.0)
    with pytest.raises(GradingUnreliable, match="16 of 20 rollouts"):
        GradingWatch(GATED.grading).check(settle(grades, rewards, GATED), step=1)
    report = gated_report(rewards, grades)
    assert (report.failed, report.ungraded) == (16, 16)
    (worst,) = (one for one in report.advice if one.code is AdviceCode.GRADING_ERRORS)
    assert worst.severity == "error"
    assert worst.message.startswith("16 of 20 completions could not be graded. `parse`: ValueError: no tags. The job ")
    assert not {AdviceCode.GATED_ERRORS, AdviceCode.GOOD_TO_GO} & advice(report).keys()


def test_what_several_terms_failed_on_is_counted_once_and_all_of_it():
    """One fails on the first half, one on the second: no term fails on more than half, the job on everything."""
    spec = make_spec(hyperparameters=hyperparameters(), rewards=(make_reward("a"), make_reward("b")))
    fine, broken = Grade(GradeOutcome.SCORED, 1.0), Grade(GradeOutcome.USER_ERROR, message="KeyError: 'x'")
    grades = {"a": [fine, fine, broken, broken], "b": [broken, broken, fine, broken]}
    report = make_report([None] * 4, spec=spec, grades=grades)
    assert (report.failed, [reward.blanked for reward in report.rewards]) == (4, [2, 3])
    assert report.advice[0].message.startswith("4 of 4 completions could not be graded.")


def test_a_job_with_signal_is_good_to_go():
    report = make_report(*[MIXED] * 9, ALWAYS)
    assert advice(report)[AdviceCode.GOOD_TO_GO] == (
        "90% of the groups carry signal (95 % interval 60% to 98%): enough to train on."
    )
    assert AdviceCode.TOO_EASY not in advice(report)


def test_few_errors_warn_and_many_would_stop_the_job_by_its_own_rule():
    few = make_report(*[MIXED] * 9, [None, 0.0, 1.0, 0.0]).advice[0]
    assert (few.code, few.severity) == (AdviceCode.GRADING_ERRORS, "warning")
    many = make_report(MIXED, MIXED, [None, None, 1.0, 0.0], [None, None, 0.0, 1.0]).advice[0]
    assert (many.code, many.severity) == (AdviceCode.GRADING_ERRORS, "error")
    assert "would pause at its first step: at most 20% may fail" in many.message


def test_a_reward_that_applies_to_few_completions_is_told_from_one_that_fails():
    silent = {"exact": [Grade(GradeOutcome.NO_ANSWER)] * 8 + [Grade(GradeOutcome.SCORED, 1.0)] * 8}
    report = make_report([None] * 4, [None] * 4, MIXED, MIXED, grades=silent)
    assert "8 of 16 completions" in advice(report)[AdviceCode.NO_ANSWER]
    assert AdviceCode.GRADING_ERRORS not in advice(report)
    nothing = make_report([None] * 4, grades={"exact": [Grade(GradeOutcome.NO_ANSWER)] * 4})
    assert [(one.code, one.severity) for one in nothing.advice] == [(AdviceCode.NO_ANSWER, "error")]


@pytest.mark.parametrize("groups", [[ALWAYS] * 5, [NEVER] * 5, [HALF] * 5])
def test_one_reward_for_everything_is_the_only_thing_to_talk_about(groups):
    report = make_report(*groups)
    assert [(one.code, one.severity) for one in report.advice] == [(AdviceCode.CONSTANT_REWARD, "error")]
    assert f"the same reward, {groups[0][0]:g}" in report.advice[0].message


def test_prompts_that_are_too_easy_or_too_hard_are_named_with_their_rows():
    easy, hard = make_report(ALWAYS, MIXED, ALWAYS, ALWAYS, MIXED), make_report(NEVER, MIXED, NEVER, NEVER, MIXED)
    assert {AdviceCode.TOO_EASY, AdviceCode.DROP_SOLVED_PROMPTS} <= advice(easy).keys()
    assert {AdviceCode.TOO_HARD, AdviceCode.DROP_UNSOLVED_PROMPTS} <= advice(hard).keys()
    for report, code in ((easy, AdviceCode.DROP_SOLVED_PROMPTS), (hard, AdviceCode.DROP_UNSOLVED_PROMPTS)):
        (drop,) = (one for one in report.advice if one.code is code)
        assert drop.rows == (1, 3, 4)
        assert "about 120 of the 200 training rows" in drop.message


def test_a_coarse_reward_is_named_with_its_rows():
    report = make_report(MIXED, HALF, MIXED, HALF)
    (coarse,) = (one for one in report.advice if one.code is AdviceCode.COARSE_REWARD)
    assert coarse.rows == (2, 4)


def test_cut_completions_ask_for_more_room():
    report = make_report(MIXED, NEVER, cut=True)
    assert report.causes == {FlatCause.ALL_TRUNCATED: 1}
    (more,) = (one for one in report.advice if one.code is AdviceCode.RAISE_MAX_COMPLETION_LENGTH)
    assert "100% of the completions were cut at 256 tokens" in more.message
    assert "to 512" in more.fix


def test_completions_that_are_all_the_same_ask_for_a_higher_temperature():
    report = make_report(NEVER, ALWAYS, MIXED, text="the same")
    assert report.causes == {FlatCause.IDENTICAL_COMPLETIONS: 2}
    assert "In 2 of 3 groups all 4 completions are the same text" in advice(report)[AdviceCode.SAMPLING_COLLAPSED]


@pytest.mark.parametrize("is_gate", [False, True])
def test_a_format_that_hardly_any_completion_has_is_named(is_gate):
    answer = make_reward("answer", gate=Gate(reward="form") if is_gate else None)
    form = make_reward("form")
    if not is_gate:
        form = BuiltinReward(name="form", parameters=parse_builtin({"builtin": "json_valid"}))
    spec = make_spec(hyperparameters=hyperparameters(), rewards=(form, answer))
    wrong, right = Grade(GradeOutcome.SCORED, 0.0), Grade(GradeOutcome.SCORED, 1.0)
    grades = {"form": [right] + [wrong] * 15, "answer": [right, wrong] * 8}
    report = make_report(MIXED, MIXED, MIXED, MIXED, spec=spec, grades=grades)
    assert advice(report)[AdviceCode.FIX_FORMAT].startswith("6.2% of the completions have the format that `form`")
    grades["form"] = [right, right] + [wrong] * 14
    assert AdviceCode.FIX_FORMAT not in advice(make_report(MIXED, MIXED, MIXED, MIXED, spec=spec, grades=grades))


def test_a_larger_group_is_advised_where_it_silences_ten_points_less():
    rare = [1.0, 0.0, 0.0, 0.0]
    report = make_report(NEVER, NEVER, NEVER, rare)
    shares = {size.num_generations: size.silent_share for size in report.sizes}
    assert shares[4] == 0.75
    message = advice(report)[AdviceCode.BIGGER_GROUP]
    assert message.startswith(
        f"With num_generations 8 about {shares[8]:.0%} of the groups would be silent instead of 75%"
    )
    assert "costs 17 completions instead of 16" in message, "the price is told, too"


def test_the_gravest_advice_comes_first():
    report = make_report(ALWAYS, ALWAYS, ALWAYS, [None, None, None, 0.0], MIXED)
    order = ["error", "warning", "info"]
    severities = [order.index(one.severity) for one in report.advice]
    assert severities == sorted(severities)
    assert len(report.advice) >= 3
