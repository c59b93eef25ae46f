"""What is said of sick runs, and that nothing is said of healthy ones."""

from collections.abc import Mapping
from typing import Any

import pytest

from core.learning.finding import Severity
from core.learning.findings import learning_findings
from core.learning.numbers import HeldOutScore, RunNumbers, StepNumbers
from tests.unit.learning.runs import ASKED, CHANGE, HEALED, collapsing_run, from_place, line, run_of

NO_GAIN = (HeldOutScore("baseline", 0, 200, 107, 0.62), HeldOutScore("final", 100, 200, 104, 0.61))

SICK: Mapping[str, dict[str, Any]] = {
    "all_right": {
        "signal__silent_all_right": line(0.85, 0.95),
        "signal__silent_share": line(0.9, 0.96),
        "held_out": NO_GAIN,
        "reward": line(0.97, 0.97),
    },
    "all_wrong": {
        "signal__silent_all_wrong": line(0.9, 0.95),
        "signal__silent_all_right": line(0, 0),
        "signal__silent_share": line(0.92, 0.96),
        "reward": line(0.01, 0.01),
        "held_out": NO_GAIN,
    },
    "reward_cannot_separate": {
        "signal__silent_share": line(0.95, 0.95),
        "signal__silent_all_right": line(0.5, 0.5),
        "signal__silent_all_wrong": line(0.45, 0.45),
        "reward": line(0.6, 0.6),
        "held_out": NO_GAIN,
    },
    "steps_without_gradient": {"grad_norm": from_place(0.3, 0.4, 0.0)},
    "truncated": {"completions__clipped_ratio": from_place(0.5, 0.05, 0.5)},
    "template_never_stops": {"completions__clipped_ratio": line(0.97, 1.0)},
    "grader_errors": {"grader__error_share": line(0.0, 0.15)},
    "entropy_collapse": {"entropy": from_place(0.4, 0.5, 0.01), "signal__silent_all_right": line(0.3, 0.3)},
    "reward_fell": {"reward": line(0.7, 0.2), "held_out": NO_GAIN},
    "gradient_exploded": {"grad_norm": from_place(0.7, 0.3, 40.0)},
    "repetition": {"completions__compressed_share": from_place(0.5, 0.5, 0.05)},
    "sampler_differs": {"sampling__sampling_logp_difference__mean": line(0.8, 0.9)},
    "kl_runs_away": {"kl": from_place(0.6, 0.1, 0.7)},
    "kl_stays_zero": {"kl": line(0.0, 0.0)},
    "reward_up_held_out_not": {"held_out": NO_GAIN},
    "length_pays": {"completions__mean_length": line(40, 140), "held_out": NO_GAIN},
    "constant_answer": {"completions__most_common_share": from_place(0.5, 0.1, 0.95)},
    "refusals_rise": {"completions__refusal_share": from_place(0.5, 0.01, 0.4)},
    "one_term_pays": {"rewards__match__mean": line(0.6, 0.3)},
    "reward_did_not_move": {
        "reward": line(0.5, 0.5),
        "rewards__match__mean": line(0.5, 0.5),
        "rewards__format__mean": line(0.5, 0.5),
        "held_out": NO_GAIN,
    },
    "few_held_out_tasks": {"held_out": (HeldOutScore("baseline", 0, 12, 4, 0.5), HeldOutScore("final", 9, 12, 6, 0.6))},
    "field_collapse": {
        "watch__death_date__rows": line(28, 28),
        "watch__death_date__null_share": from_place(0.6, 0.01, 0.7),
    },
    "pattern_spreads": {
        "watch__death_date__rows": line(128, 128),
        "watch__death_date__share": from_place(0.5, 0.01, 0.4),
    },
}
GOES_WITH_IT = {
    "length_pays": {"reward_up_held_out_not"},
    "template_never_stops": set(),
    "all_wrong": set(),
}
"""What such a run is rightly told besides."""


def codes(run: RunNumbers) -> list[str]:
    return [finding.code for finding in learning_findings(run)]


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_has_no_findings(seed: int):
    assert codes(run_of(seed)) == []


@pytest.mark.parametrize("code", SICK)
def test_a_sick_run_is_told_what_it_has_and_nothing_else(code: str):
    for seed in range(5):
        assert set(codes(run_of(seed, **SICK[code]))) == {code} | GOES_WITH_IT.get(code, set()), f"seed {seed}"


@pytest.mark.parametrize("code", SICK)
def test_each_finding_says_what_to_do_and_what_it_is_based_on(code: str):
    finding = next(one for one in learning_findings(run_of(**SICK[code])) if one.code == code)
    assert finding.sentence.endswith(".")
    assert finding.fix.endswith(".")
    assert finding.try_next.endswith(".")
    assert finding.evidence


@pytest.mark.parametrize(
    ("code", "began"),
    [
        ("truncated", 50),
        ("entropy_collapse", 40),
        ("field_collapse", 60),
        ("pattern_spreads", 50),
        ("refusals_rise", 50),
        ("kl_runs_away", 60),
    ],
)
def test_a_finding_says_at_which_step_it_began(code: str, began: int):
    finding = next(one for one in learning_findings(run_of(**SICK[code])) if one.code == code)
    assert finding.since_step == pytest.approx(began, abs=3)


@pytest.mark.parametrize("steps", range(10))
def test_a_run_of_a_few_steps_is_not_judged(steps: int):
    assert codes(run_of(steps=steps, **SICK["reward_fell"])) == []


def test_a_reward_for_length_is_found_though_the_held_out_tasks_pay_for_it_too():
    longer = {"completions__mean_length": line(40, 140), "signal__reward_length_correlation": line(0.9, 0.9)}
    assert codes(run_of(**longer)) == ["length_pays"]


def test_longer_answers_that_are_right_more_often_are_healthy():
    """Reasoning grows longer as it gets better; among the answers to one prompt the longer ones are no better."""
    longer = {"completions__mean_length": line(40, 140), "signal__reward_length_correlation": line(0.2, 0.1)}
    assert codes(run_of(**longer)) == []


def test_a_gradient_that_was_tiny_and_is_small_has_not_exploded():
    assert codes(run_of(grad_norm=line(0.001, 0.5))) == []


def test_a_model_that_ended_its_answers_once_has_no_broken_template():
    assert codes(run_of(completions__clipped_ratio=from_place(0.3, 0.0, 1.0))) == ["truncated"]


FORMAT_ALONE = {"rewards__format__mean": line(0.3, 1.0), "rewards__match__mean": line(0.5, 0.5)}
HIGHER_REWARD = (HeldOutScore("baseline", 0, 200, 107, 0.62), HeldOutScore("final", 100, 200, 106, 0.97))


def test_a_format_that_pays_is_found_though_nothing_falls_and_held_out_rewards_rise_with_it():
    (finding,) = learning_findings(run_of(**FORMAT_ALONE, held_out=HIGHER_REWARD))
    assert finding.code == "one_term_pays"
    assert finding.sentence == (
        "The reward rises by `format`, and no held-out task was gained by it (107 to 106 of 200 passed)."
    )


@pytest.mark.parametrize(
    "changes",
    [
        {**FORMAT_ALONE},
        {**FORMAT_ALONE, "held_out": ()},
        {**FORMAT_ALONE, "held_out": HIGHER_REWARD, "rewards__match__mean": line(0.5, 0.7)},
        {**FORMAT_ALONE, "held_out": HIGHER_REWARD, "rewards__match__mean": None},
    ],
    ids=["held-out tasks are gained", "there are none", "another term gains too", "there is no other term"],
)
def test_a_term_that_is_learned_first_is_no_exploit(changes: dict[str, Any]):
    assert codes(run_of(**changes)) == []


def test_that_all_is_right_is_a_remark_where_it_was_learned_and_a_warning_where_it_was_so_before():
    learned = run_of(signal__silent_all_right=line(0.1, 1.0), held_out=())
    before = run_of(signal__silent_all_right=line(0.95, 0.95), held_out=())
    severity = [
        next(one.severity for one in learning_findings(run) if one.code == "all_right") for run in (learned, before)
    ]
    assert severity == [Severity.INFO, Severity.WARNING]


def test_a_kl_that_explodes_is_found_though_no_two_steps_are_alike():
    assert codes(run_of(kl=lambda place: 10 ** (20 * max(0.0, place - 0.6)))) == ["kl_runs_away"]


def test_one_token_that_the_base_never_writes_is_no_drift():
    """The estimate of KL has a long tail: e^9 from one token makes the mean of a step, and not the policy."""
    assert codes(run_of(kl=lambda place: 8000.0 if round(place * 100) in (85, 97) else 0.1)) == []


def test_a_policy_that_does_not_move_may_stay_at_the_base():
    assert "kl_stays_zero" not in codes(run_of(kl=line(0, 0), reward=line(0.6, 0.6)))


def test_few_possible_answers_are_not_one_answer_to_everything():
    assert codes(run_of(completions__most_common_share=line(0.6, 0.85))) == []


def test_what_is_not_a_number_is_said_and_poisons_no_other_rule():
    healthy = run_of()
    broken = [
        StepNumbers(one.step, {**one.metrics, "loss": None}) if one.step in (40, 41) else one for one in healthy.steps
    ]
    (finding,) = learning_findings(RunNumbers(broken, healthy.held_out, ASKED))
    assert (finding.code, finding.since_step, finding.evidence) == ("not_a_number", 40, {"steps": 2})


def test_the_gravest_comes_first():
    spoiled = run_of(**{**SICK["truncated"], **SICK["gradient_exploded"], **SICK["few_held_out_tasks"]})
    assert codes(spoiled) == ["gradient_exploded", "truncated", "few_held_out_tasks"]


def test_a_run_without_held_out_tasks_is_judged_by_its_steps():
    assert codes(run_of(held_out=())) == []


@pytest.mark.parametrize("seed", range(10))
def test_the_measured_collapse_is_found_within_three_steps_while_the_reward_stays_high(seed: int):
    found = [one for one in learning_findings(collapsing_run(seed)) if one.code == "field_collapse"]
    first = min(found, key=lambda one: one.evidence["found_at_step"] or 0)
    assert "`death_date`" in first.sentence
    assert CHANGE <= (first.evidence["found_at_step"] or 0) < CHANGE + 3
    assert not any("`birth_date`" in one.sentence for one in found), "13 of 1,158 are no collapse"
    (place,) = (one for one in found if one.subject == "death_place")
    assert place.since_step == pytest.approx(CHANGE, abs=12)
    assert CHANGE < (place.evidence["found_at_step"] or 0) < CHANGE + 20, "1.9 of a step's prompts have one"


@pytest.mark.parametrize("seed", range(10))
def test_the_measured_collapse_is_over_when_the_fields_came_back(seed: int):
    assert "field_collapse" in codes(collapsing_run(seed, steps=HEALED))
    assert "field_collapse" not in codes(collapsing_run(seed, steps=606))


@pytest.mark.parametrize(
    ("code", "curves"),
    [
        ("entropy_collapse", {"entropy": from_place(0.5, 0.5, 0.01), "signal__silent_all_right": line(0.3, 0.3)}),
        ("truncated", {"completions__clipped_ratio": from_place(0.5, 0.05, 0.6)}),
        ("gradient_exploded", {"grad_norm": from_place(0.5, 0.3, 40.0)}),
    ],
)
def test_in_a_long_run_trouble_is_found_as_soon_as_in_a_short_one(code: str, curves: dict[str, Any]):
    run = run_of(steps=2000, **curves)
    assert code not in codes(run.up_to(999))
    assert code in codes(run.up_to(1020))


def held_out(*rewards: float, tasks: int = 200, change_of: float = 0.0) -> tuple[HeldOutScore, ...]:
    """Evaluations every 50 steps, of tasks that are each as good as the mean, but for a spread that averages out."""
    return tuple(
        HeldOutScore(
            f"step-{50 * number}",
            50 * number,
            tasks,
            int(mean * tasks),
            mean,
            {f"{task}": mean + change_of * number * (task % 2 - 0.5) for task in range(tasks)},
        )
        for number, mean in enumerate(rewards)
    )


def test_held_out_tasks_that_stay_flat_have_not_followed_though_one_was_lucky():
    flat = held_out(0.62, 0.63, 0.625, change_of=0.1)
    (finding,) = (one for one in learning_findings(run_of(held_out=flat)) if one.code == "reward_up_held_out_not")
    assert finding.since_step == 50, "where they were best"


def test_a_few_held_out_tasks_cannot_say_that_they_have_not_followed():
    few = held_out(0.62, 0.63, 0.64, tasks=12, change_of=0.6)
    assert "reward_up_held_out_not" not in codes(run_of(held_out=few))


def test_held_out_tasks_that_gained_most_of_it_have_followed():
    assert codes(run_of(held_out=held_out(0.62, 0.75, 0.9, change_of=0.1))) == []


def test_the_reward_has_until_the_next_evaluation_for_the_held_out_tasks_to_follow():
    """What was learned since the last one could not show in it."""
    late = {"reward": from_place(0.55, 0.62, 0.97)}
    assert "reward_up_held_out_not" not in codes(run_of(held_out=held_out(0.62, 0.62), **late))
    assert "reward_up_held_out_not" in codes(run_of(held_out=held_out(0.62, 0.62, 0.62), **late))
