"""What the values of a reward say about it, and what it is shown: no process, no clock."""

import json
from typing import Any

import pytest

from core.reward_report import (
    CaseResult,
    FlagCode,
    FlagLevel,
    Gold,
    Latency,
    Outcomes,
    ProbeCase,
    ProbeReport,
    ProbeStatus,
    Wrapping,
    status_of,
)
from core.rows import Row
from worker.grading.probe_flags import Change, Seen, flags_of
from worker.grading.probe_inputs import MAX_GOLD_CHARS, WRONG, every_answer, guesses, junk, other_answer, token_ids
from worker.grading.probe_results import Guessed, choose, outdone

JUNK = ("constant", "empty", "echo", "format_only", "markup", "non_utf8", "very_long")
INFO, WARNING, ERROR = FlagLevel.INFO, FlagLevel.WARNING, FlagLevel.ERROR


def result(
    case: str,
    mean: float | None,
    *,
    variant: str | None = None,
    least: float | None = None,
    most: float | None = None,
    errors: int = 0,
    message: str | None = None,
) -> CaseResult:
    scored = 0 if mean is None else 4
    return CaseResult(
        case=ProbeCase(case),
        variant=variant,
        sent="...",
        outcomes=Outcomes(scored=scored, no_answer=0, user_error=errors, infrastructure_error=0, timed_out=0),
        mean=mean,
        least=mean if least is None else least,
        most=mean if most is None else most,
        messages=(message,) if message else (),
    )


def gold(mean: float | None, *, recognised: bool = True, **more: Any) -> Gold:
    return Gold(
        column="answer",
        wrapping=Wrapping.BOXED,
        recognised=recognised,
        candidates=7,
        result=result("gold", mean, **more),
    )


def levels(seen: Seen) -> dict[FlagCode, FlagLevel]:
    return {flag.code: flag.level for flag in flags_of(seen)}


def judged(gold_mean: float | None = 1.0, **means: float) -> dict[FlagCode, FlagLevel]:
    """Flags for the cases' means beside a gold answer; what is not named gets 0."""
    cases = [result(case, mean) for case, mean in (dict.fromkeys(JUNK, 0.0) | means).items()]
    return levels(Seen(cases, None if gold_mean is None else gold(gold_mean)))


# What is paid for.


def test_a_reward_that_pays_for_gold_alone_has_no_flags():
    assert judged() == {}


@pytest.mark.parametrize(
    "case", ["constant", "empty", "echo", "format_only", "non_utf8", "other_answer", "every_answer"]
)
@pytest.mark.parametrize(("paid", "level"), [(0.1, None), (0.3, INFO), (0.6, WARNING), (1.0, WARNING)])
def test_junk_is_measured_against_gold(case, paid, level):
    found = judged(**{case: paid})
    assert found.get(FlagCode(f"pays_for_{case}")) is level
    assert set(found) <= {FlagCode(f"pays_for_{case}")}


def test_values_are_measured_from_the_least_that_anything_got():
    shifted = dict.fromkeys(JUNK, -3.0)
    assert judged(-1.0, **shifted) == {}
    assert judged(-1.0, **{**shifted, "empty": -1.5}) == {FlagCode.PAYS_FOR_EMPTY: WARNING}


def test_junk_above_gold_is_an_error():
    found = judged(echo=1.5)
    assert found == {FlagCode.PREFERS_JUNK_TO_GOLD: ERROR, FlagCode.PAYS_FOR_ECHO: WARNING}


def test_length_is_told_from_what_the_sentence_earns_by_itself():
    assert judged(very_long=0.7) == {FlagCode.PAYS_FOR_LENGTH: WARNING}
    both = judged(very_long=0.7, constant=0.7)
    assert FlagCode.PAYS_FOR_LENGTH not in both


def test_markup_is_told_from_what_the_form_earns_by_itself():
    assert judged(markup=0.6) == {FlagCode.FOOLED_BY_MARKUP: WARNING}
    assert judged(markup=0.3) == {FlagCode.FOOLED_BY_MARKUP: INFO}
    assert judged(markup=0.3, format_only=0.3) == {FlagCode.PAYS_FOR_FORMAT_ONLY: INFO}


def test_the_variant_that_was_paid_most_is_named():
    cases = [result("constant", 0.0), result("markup", 0.1, variant="a"), result("markup", 0.9, variant="b")]
    (flag,) = flags_of(Seen(cases, gold(1.0)))
    assert "(b) gets 0.9" in flag.message
    assert "the gold answer gets 1" in flag.message


def test_without_gold_the_highest_value_is_the_measure_and_form_is_information():
    cases = [result("constant", 0.0), result("empty", 0.8), result("format_only", 1.0)]
    found = levels(Seen(cases, None, no_gold="there is no data"))
    assert found == {
        FlagCode.PAYS_FOR_EMPTY: WARNING,
        FlagCode.PAYS_FOR_FORMAT_ONLY: INFO,
        FlagCode.GOLD_NOT_TRIED: INFO,
    }


def test_penalties_pay_for_nothing():
    cases = [result("constant", 0.0), result("empty", 0.0), result("very_long", -1.0)]
    assert levels(Seen(cases, None)) == {}


@pytest.mark.parametrize(
    ("value", "best", "level"), [(1.0, None, WARNING), (0.0, gold(0.0), WARNING), (0.0, None, INFO)]
)
def test_one_value_for_everything_is_flagged(value, best, level):
    best = best and best.model_copy(update={"recognised": False})
    found = levels(Seen([result("constant", value), result("empty", value)], best))
    assert found[FlagCode.ALWAYS_THE_SAME] is level


def test_zeros_of_a_reward_that_names_no_column_are_information():
    seen = Seen([result("constant", 0.0)], gold(0.0, recognised=False), names_columns=False)
    assert levels(seen)[FlagCode.ALWAYS_THE_SAME] is INFO


# Gold.


def test_gold_that_earns_no_more_than_a_wrong_answer_is_not_recognised():
    cases = [result("constant", 0.0), result("format_only", 1.0, variant="boxed, wrong")]
    found = levels(Seen(cases, gold(1.0, recognised=False)))
    assert found == {FlagCode.GOLD_NOT_RECOGNISED: INFO, FlagCode.PAYS_FOR_FORMAT_ONLY: INFO}


def test_a_right_answer_below_a_wrong_one_is_a_warning():
    wrong, right = result("constant", 1.0), result("gold", 0.0, variant="answer, text")
    seen = Seen([wrong, result("empty", 1.0)], gold(1.0, recognised=False), outdone=(right, wrong))
    assert levels(seen)[FlagCode.PREFERS_JUNK_TO_GOLD] is WARNING


def test_gold_and_floor_may_be_one_value_when_all_junk_failed():
    cases = [result("constant", None, errors=4, message="ValueError: no JSON")]
    assert levels(Seen(cases, gold(1.0))) == {FlagCode.ERRORS_ON_CONSTANT: WARNING}


def test_junk_above_gold_is_measured_also_where_nothing_else_scored():
    cases = [result("constant", None, errors=4), result("echo", 5.0)]
    found = levels(Seen(cases, gold(1.0)))
    assert found[FlagCode.PREFERS_JUNK_TO_GOLD] is ERROR
    assert found[FlagCode.PAYS_FOR_ECHO] is WARNING


def guessed(name: str, mean: float | None, control: float | None) -> Guessed:
    (guess, *_) = guesses([Row(1, "?", {name: "42"})], [name])
    return Guessed(guess, result("gold", mean), None if control is None else result("constant", control))


def test_the_guess_that_beats_its_own_wrong_answer_wins_over_one_that_is_paid_more():
    best = choose([guessed("a", 1.0, 1.0), guessed("b", 0.5, 0.0), guessed("c", 0.5, 0.0), guessed("d", None, None)])
    assert (best.guess.column, best.is_recognised) == ("b", True)
    assert choose([]) is None


def test_the_guess_that_loses_most_is_told_only_when_none_wins():
    lost = [guessed("a", 0.4, 0.5), guessed("b", 0.0, 1.0)]
    right, wrong = outdone(lost)
    assert (right.mean, wrong.mean) == (0.0, 1.0)
    assert outdone([*lost, guessed("c", 1.0, 0.0)]) is None
    assert outdone([guessed("a", 1.0, 1.0)]) is None


# Failing, changing, waiting.


def test_errors_are_told_by_case_with_what_was_raised():
    cases = [result("constant", 0.0), result("empty", None, errors=4, message="IndexError: no line")]
    (flag,) = flags_of(Seen(cases, gold(1.0)))
    assert (flag.code, flag.level) == (FlagCode.ERRORS_ON_EMPTY, WARNING)
    assert flag.message == "4 of 4 completions were not graded but failed: IndexError: no line"


def test_errors_on_made_up_rows_are_information():
    cases = [result("constant", 0.0), result("echo", None, errors=3)]
    assert levels(Seen(cases, None, synthetic=True))[FlagCode.ERRORS_ON_ECHO] is INFO


@pytest.mark.parametrize(("synthetic", "level"), [(False, ERROR), (True, WARNING)])
def test_a_reward_that_never_scores_is_told_once(synthetic, level):
    cases = [result("constant", None, errors=4, message="KeyError: 'x'"), result("empty", None, errors=4)]
    assert levels(Seen(cases, gold(None, recognised=False), synthetic=synthetic)) == {FlagCode.NEVER_SCORES: level}


def test_an_input_with_two_values_is_shown_with_both():
    changes = [Change(ProbeCase.EMPTY, 3, 0.1, 0.2), Change(ProbeCase.ECHO, 7, 0.1, 0.9)]
    (flag,) = flags_of(Seen([result("constant", 0.0)], gold(1.0), changes=changes, compared=40))
    assert flag.code is FlagCode.UNSTABLE
    assert flag.message == "2 of 40 inputs got another value the second time: echo, row 7: 0.1, then 0.9."


def test_values_that_are_noise_are_not_compared():
    cases = [result("constant", 0.9, least=0.1, most=1.0), result("empty", 0.5)]
    changes = [Change(ProbeCase.EMPTY, 1, 0.1, 0.6)] * 3
    assert levels(Seen(cases, gold(0.8), changes=changes, compared=4)) == {FlagCode.UNSTABLE: ERROR}
    small = [Change(ProbeCase.EMPTY, 1, 0.1, 0.11)] * 3
    assert levels(Seen(cases, gold(0.8), changes=small, compared=4)) == {
        FlagCode.PREFERS_JUNK_TO_GOLD: ERROR,
        FlagCode.PAYS_FOR_CONSTANT: WARNING,
        FlagCode.UNSTABLE: WARNING,
    }


@pytest.mark.parametrize(("median_s", "max_s", "slow"), [(0.01, 0.5, False), (0.2, 0.3, True), (0.01, 2.0, True)])
def test_slowness_is_told_for_a_step(median_s, max_s, slow):
    seen = Seen([result("constant", 0.0)], gold(1.0), latency=Latency(median_s=median_s, max_s=max_s))
    assert (FlagCode.SLOW in levels(seen)) is slow


def test_what_there_was_no_time_for_is_named():
    (flag,) = flags_of(Seen([result("constant", 0.0)], gold(1.0), not_tried=[ProbeCase.VERY_LONG]))
    assert (flag.code, "very_long" in flag.message) == (FlagCode.OUT_OF_TIME, True)


def test_the_worst_flags_stand_first_and_decide_the_status():
    cases = [result("constant", 0.3), result("empty", 0.6), result("echo", 2.0), result("non_utf8", 0.0)]
    flags = flags_of(Seen(cases, gold(1.0)))
    assert [flag.level for flag in flags] == sorted((flag.level for flag in flags), key=list(FlagLevel).index)
    assert status_of(flags) is ProbeStatus.FAILED
    assert status_of(flags[1:]) is ProbeStatus.FLAGGED
    assert status_of([]) is ProbeStatus.PASSED


def test_every_case_has_a_flag_for_its_errors():
    assert {f"errors_on_{case}" for case in ProbeCase} <= set(FlagCode)


def test_a_report_survives_json():
    seen = Seen([result("constant", 0.0)], gold(1.0))
    report = ProbeReport(
        status=ProbeStatus.PASSED, loads=True, cases=tuple(seen.cases), gold=seen.gold, stable=True, seconds=0.5
    )
    assert ProbeReport.model_validate_json(report.model_dump_json()) == report
    assert json.loads(report.model_dump_json())["version"] == 1


def test_the_published_schema_explains_the_fields():
    described = ProbeReport.model_json_schema()["properties"]
    assert "made up" in described["synthetic"]["description"]


# What is shown.


def test_junk_is_one_text_for_each_row_and_the_longest_for_two():
    rows = [Row(n, f"prompt {n}", {}) for n in range(1, 5)]
    shown = junk(rows)
    assert {one.case for one in shown} == set(ProbeCase) - {
        ProbeCase.GOLD,
        ProbeCase.OTHER_ANSWER,
        ProbeCase.EVERY_ANSWER,
    }
    assert [len(one.texts) for one in shown if one.case is ProbeCase.VERY_LONG] == [2]
    (echo,) = (one for one in shown if one.case is ProbeCase.ECHO)
    assert echo.texts == ("prompt 1", "prompt 2", "prompt 3", "prompt 4")


def test_every_guess_is_compared_with_a_wrong_answer_in_its_form():
    rows = [Row(1, "?", {"answer": "42", "record": {"x": 1}})]
    shown = {(one.case, one.variant): one.texts[0] for one in junk(rows)}
    for guess in guesses(rows, ["answer"]):
        case = ProbeCase.CONSTANT if guess.control is None else ProbeCase.FORMAT_ONLY
        assert shown[case, guess.control] == guess.texts[0].replace('"42"', f'"{WRONG}"').replace("42", WRONG)
    as_json = next(guess for guess in guesses(rows, ["record"]) if guess.wrapping is Wrapping.TEXT)
    assert shown[ProbeCase.FORMAT_ONLY, as_json.control] == f'{{"answer": "{WRONG}"}}'


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ("42", {"answer": "42"}),
        (42, {"answer": "42"}),
        (True, {"answer": "true"}),
        (["a", "b"], {"answer": '["a", "b"]', "answer[0]": "a"}),
        ({"x": "é", "y": None}, {"answer": '{"x": "é", "y": null}', "answer.x": "é"}),
        ("6 x 7\n#### 42", {"answer": "6 x 7\n#### 42", "answer after ####": "42"}),
        (None, {}),
        ("", {}),
        ("x" * (MAX_GOLD_CHARS + 1), {}),
    ],
)
def test_answers_are_found_in_what_columns_hold(value, texts):
    found = guesses([Row(1, "?", {"answer": value})], ["answer"])
    assert {one.column: one.texts[0] for one in found if one.wrapping is Wrapping.TEXT} == texts
    assert len(found) == len(texts) * len(Wrapping)


def test_a_row_without_the_answer_has_no_text():
    (first, *_) = guesses([Row(1, "?", {"a": "1"}), Row(2, "?", {"a": None})], ["a"])
    assert first.texts == ("1", None)


def test_the_own_answer_stands_neither_first_nor_last_among_all():
    rows = [Row(n, "?", {"a": str(n)}) for n in range(1, 5)]
    listed = every_answer(guesses(rows, ["a"])[0])
    for own, text in zip("1234", listed.texts, strict=True):
        lines = text.split("\n")
        assert sorted(lines) == ["1", "2", "3", "4"]
        assert own not in {lines[0], lines[-1]}
    assert every_answer(guesses(rows[:2], ["a"])[0]) is None


def test_the_other_answer_is_the_next_one_that_differs():
    rows = [Row(n, "?", {"a": answer}) for n, answer in enumerate(("x", "x", "y", None), 1)]
    assert other_answer(guesses(rows, ["a"])[0]).texts == ("y", "y", "x", None)
    assert other_answer(guesses(rows[:2], ["a"])[0]) is None


def test_repeated_words_have_repeated_tokens():
    ids = token_ids("a b a b")
    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]
    assert token_ids("") == []
