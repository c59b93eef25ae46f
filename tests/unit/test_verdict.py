"""Did it learn? The source's figures, textbook values, and what must never be claimed."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from core import verdict
from core.results import Answer, Evaluation, TaskResult, Verdict

RIGHT, WRONG, UNGRADED = 1.0, 0.0, None
SEED = 7


def answer(reward: float | None, *, finish_reason="stop") -> Answer:
    passed = None if reward is None else reward >= 1.0
    return Answer(completion="x", reward=reward, passed=passed, completion_tokens=3, finish_reason=finish_reason)


def evaluation(greedy, sampled=None, *, step: int = 0, pass_threshold: float = 1.0, first_task: int = 0) -> Evaluation:
    """One reward a task; `sampled` has a list of rewards for each."""
    sampled = sampled or [[reward] for reward in greedy]
    tasks = tuple(
        TaskResult(
            task=number,
            prompt_sha256=f"{number:064x}",
            greedy=answer(reward),
            sampled=tuple(answer(one) for one in several),
        )
        for number, (reward, several) in enumerate(zip(greedy, sampled, strict=True), start=first_task)
    )
    return Evaluation(step=step, pass_threshold=pass_threshold, tasks=tasks, seconds=1.0)


def judge(before: Evaluation, after: Evaluation, *, decoding="greedy", why=None) -> Verdict:
    return verdict.judge(before, after, decoding=decoding, seed=SEED, why=why)


def paired(fixed: int, broken: int, same: int = 100) -> Verdict:
    before = evaluation([WRONG] * fixed + [RIGHT] * broken + [RIGHT] * same)
    after = evaluation([RIGHT] * fixed + [WRONG] * broken + [RIGHT] * same)
    return judge(before, after)


@pytest.mark.parametrize(("fixed", "broken", "p"), [(18, 13, 0.47), (9, 17, 0.17)])
def test_the_paired_comparisons_of_the_source_document(fixed, broken, p):
    found = paired(fixed, broken)
    assert round(found.p_value, 2) == p
    assert (found.fixed, found.broken, found.same, found.tasks) == (fixed, broken, 100, 100 + fixed + broken)
    assert found.outcome == "no_significant_change"


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemars_p_value_is_the_binomial_tests(fixed, broken):
    reference = stats.binomtest(fixed, fixed + broken, 0.5).pvalue if fixed + broken else 1.0
    assert verdict.mcnemar_p_value(fixed, broken) == pytest.approx(reference, rel=1e-9)


def test_mcnemars_p_value_is_exact_where_floats_would_end():
    assert verdict.mcnemar_p_value(2000, 0) == 0.0
    assert verdict.mcnemar_p_value(5000, 5000) == 1.0


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [
        (155, 200, 0.7123, 0.8274),
        (0, 10, 0.0, 0.2775),  # Wilson's interval of nothing in ten
        (10, 10, 0.7225, 1.0),
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilsons_interval_against_known_values(passed, n, low, high):
    found = verdict.wilson(passed, n)
    assert found is not None
    assert found == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilsons_interval_is_scipys_and_holds_the_rate(case):
    passed, n = case
    low, high = verdict.wilson(passed, n)
    reference = stats.binomtest(passed, n).proportion_ci(0.95, method="wilson")
    assert (low, high) == (pytest.approx(reference.low, abs=1e-9), pytest.approx(reference.high, abs=1e-9))
    assert low - 1e-12 <= passed / n <= high + 1e-12


def test_there_is_no_interval_of_nothing():
    assert verdict.wilson(0, 0) is None


def test_the_bootstrap_is_seeded_and_its_interval_holds_the_mean():
    changes = [0.0, 0.5, -0.25, 1.0, 0.25, 0.0, 0.75, -0.5] * 10
    low, high = verdict.paired_bootstrap(changes, seed=SEED)
    assert (low, high) == verdict.paired_bootstrap(changes, seed=SEED)
    assert (low, high) != verdict.paired_bootstrap(changes, seed=SEED + 1)
    assert low < sum(changes) / len(changes) < high


def test_the_bootstraps_interval_is_as_wide_as_the_normal_one_for_many_tasks():
    changes = [0.0, 1.0] * 200
    low, high = verdict.paired_bootstrap(changes, seed=SEED)
    reach = 1.96 * 0.5 / math.sqrt(400)
    assert (low, high) == (pytest.approx(0.5 - reach, abs=0.005), pytest.approx(0.5 + reach, abs=0.005))


def test_the_bootstrap_of_no_change_is_zero():
    assert verdict.paired_bootstrap([0.0] * 5, seed=SEED) == (0.0, 0.0)


def test_a_run_that_learned_is_improved_and_says_by_how_much():
    found = paired(55, 7, 138)
    assert (found.outcome, found.change_points) == ("improved", 24.0)
    assert found.sentence == "Improved: 55 of 200 tasks fixed, 7 broken (p = 2.4e-10), +24.0 points."
    assert found.mean_reward_change == pytest.approx(0.24)
    low, high = found.mean_reward_change_ci95
    assert 0 < low < 0.24 < high


def test_a_run_that_forgot_is_worse():
    found = paired(2, 20)
    assert found.outcome == "worse"
    assert found.sentence.startswith("Worse: 2 of 122 tasks fixed, 20 broken")
    assert found.change_points < 0


def test_more_passes_that_the_mean_reward_does_not_bear_out_are_no_improvement():
    """Ten tasks are just passed now, and ten others lost nearly all of their reward without ever having passed."""
    before, after = evaluation([0.9] * 10 + [0.9] * 10), evaluation([1.0] * 10 + [0.0] * 10)
    found = judge(before, after, why="Rewards disagree.")
    assert (found.outcome, found.fixed, found.broken) == ("no_significant_change", 10, 0)
    assert found.p_value < 0.05
    assert found.sentence.startswith(
        "No significant change: 10 of 20 tasks fixed, 0 broken (p = 0.002), but the mean reward changed by -0.6"
    )
    assert found.sentence.endswith("(95 %). Rewards disagree.")
    assert judge(after, before).outcome == "worse"


@settings(max_examples=25)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 10))
def test_nothing_is_claimed_without_significance(fixed, broken, same):
    found = paired(fixed, broken, same)
    if found.p_value is None or found.p_value >= 0.05:
        assert found.outcome in ("no_significant_change", "not_comparable")
    elif found.outcome != "not_comparable":
        assert found.outcome == ("improved" if fixed > broken else "worse")


def test_without_a_significant_change_the_verdict_says_what_would_have_counted():
    found = paired(3, 1, 20)
    assert found.smallest_significant_fixed == 6
    assert "With 24 tasks, 6 fixed and none broken is the least that would count." in found.sentence


def test_five_tasks_can_show_nothing_and_the_verdict_says_so():
    found = paired(5, 0, 0)
    assert (found.outcome, found.smallest_significant_fixed) == ("no_significant_change", None)
    assert "5 tasks are too few to show any change; use at least 6." in found.sentence


def test_two_tasks_are_compared_and_can_show_nothing():
    found = paired(2, 0, 0)
    assert (found.outcome, found.p_value, found.fixed) == ("no_significant_change", 0.5, 2)
    assert "2 tasks are too few to show any change; use at least 6." in found.sentence


def test_one_task_is_no_comparison_and_it_is_not_called_ungraded():
    found = paired(1, 0, 0)
    assert found.outcome == "not_comparable"
    assert found.sentence == "Not comparable: fewer than 2 held-out tasks; use at least 6."


def test_why_nothing_changed_is_said_only_where_nothing_did():
    same, better = evaluation([RIGHT, WRONG] * 10), evaluation([RIGHT] * 20)
    assert judge(same, same, why="All groups were silent.").sentence.endswith(" All groups were silent.")
    assert "silent" not in judge(same, better, why="All groups were silent.").sentence


def test_other_tasks_are_not_compared():
    found = judge(evaluation([WRONG] * 20), evaluation([RIGHT] * 20, first_task=1))
    assert found.outcome == "not_comparable"
    assert "did not answer the same tasks" in found.sentence


def test_the_same_lines_with_other_prompts_are_not_compared():
    before = evaluation([WRONG] * 20)
    changed = before.tasks[0].model_copy(update={"prompt_sha256": "f" * 64})
    after = evaluation([RIGHT] * 20).model_copy(update={"tasks": (changed, *evaluation([RIGHT] * 20).tasks[1:])})
    assert judge(before, after).outcome == "not_comparable"


def test_another_pass_threshold_is_not_compared():
    found = judge(evaluation([WRONG] * 20), evaluation([RIGHT] * 20, pass_threshold=0.5))
    assert found.outcome == "not_comparable"
    assert "pass threshold" in found.sentence


def test_too_many_ungraded_tasks_are_not_compared():
    before = evaluation([WRONG] * 20)
    assert judge(before, evaluation([RIGHT] * 15 + [UNGRADED] * 5)).outcome == "not_comparable"
    assert judge(before, evaluation([RIGHT] * 16 + [UNGRADED] * 4)).outcome == "improved"
    found = judge(before, evaluation([UNGRADED] * 20))
    assert (found.outcome, found.tasks, found.p_value, found.mean_reward_change) == ("not_comparable", 0, None, None)
    assert found.sentence == "Not comparable: only 0 of 20 tasks could be graded both times."


def test_a_task_that_could_not_be_graded_is_neither_fixed_nor_broken():
    before = evaluation([WRONG] * 10 + [RIGHT] * 10)
    found = judge(before, evaluation([RIGHT] * 9 + [UNGRADED] + [RIGHT] * 9 + [UNGRADED]))
    assert (found.fixed, found.broken, found.same, found.tasks) == (9, 0, 9, 18)


def test_the_decoding_decides_which_answers_are_compared():
    before = evaluation([WRONG] * 10, [[RIGHT]] * 10)
    after = evaluation([RIGHT] * 10, [[RIGHT]] * 10)
    assert judge(before, after, decoding="greedy").fixed == 10
    assert judge(before, after, decoding="sampled").fixed == 0


def test_a_score_counts_errors_apart_and_rates_what_was_graded():
    found = verdict.score("final", evaluation([RIGHT, WRONG, UNGRADED, RIGHT], step=9))
    assert (found.name, found.step) == ("final", 9)
    assert (found.greedy.n, found.greedy.passed, found.greedy.errors) == (3, 2, 1)
    assert found.greedy.pass_rate == pytest.approx(2 / 3)
    assert found.greedy.mean_reward == pytest.approx(2 / 3)


def test_an_interval_counts_each_task_once_however_often_it_was_sampled():
    few = verdict.score("final", evaluation([RIGHT, WRONG] * 5, [[RIGHT], [WRONG]] * 5)).sampled
    many = verdict.score("final", evaluation([RIGHT, WRONG] * 5, [[RIGHT] * 8, [WRONG] * 8] * 5)).sampled
    assert (few.n, many.n) == (10, 80)
    assert few.pass_rate_ci95 == many.pass_rate_ci95


def test_a_mean_reward_has_the_normal_interval_of_its_tasks():
    rewards = [number / 10 for number in range(11)]
    found = verdict.score("final", evaluation(rewards)).greedy
    low, high = stats.norm.interval(0.95, loc=0.5, scale=stats.sem(rewards))
    assert found.mean_reward_ci95 == pytest.approx((low, high))


def test_copies_of_a_prompt_narrow_no_interval_of_the_mean_reward():
    once = evaluation([number / 10 for number in range(11)])
    copies, plain = verdict.score("final", repeated(once, 4)), verdict.score("final", once)
    assert copies.greedy.mean_reward_ci95 == pytest.approx(plain.greedy.mean_reward_ci95)


def test_an_interval_of_a_mean_reward_lies_around_the_mean_that_is_told():
    often = repeated(evaluation([RIGHT]), 1000)
    others = evaluation([WRONG] * 20, first_task=1000)
    found = verdict.score("final", often.model_copy(update={"tasks": often.tasks + others.tasks})).greedy
    low, high = found.mean_reward_ci95
    assert (low + high) / 2 == pytest.approx(found.mean_reward) == pytest.approx(1000 / 1020)


@pytest.mark.parametrize("rewards", [[0.1, 0.5, 0.9] * 3, [RIGHT] * 100], ids=["few tasks", "all alike"])
def test_no_interval_of_a_mean_reward_claims_more_than_is_known(rewards):
    found = verdict.score("final", evaluation(rewards)).greedy
    assert (found.mean_reward, found.mean_reward_ci95) == (pytest.approx(sum(rewards) / len(rewards)), None)


def test_what_could_hardly_be_graded_has_no_rank():
    errors = evaluation([RIGHT] * 9 + [UNGRADED])
    (last,) = errors.tasks[9:]
    failed = last.model_copy(update={"greedy": last.greedy.model_copy(update={"error": "boom"})})
    evaluations = {
        "baseline": evaluation([WRONG] * 10),
        "two abstentions": evaluation([RIGHT] * 4 + [WRONG] * 4 + [UNGRADED] * 2, step=1),
        "three abstentions": evaluation([RIGHT] * 7 + [UNGRADED] * 3, step=2),
        "one error": errors.model_copy(update={"tasks": (*errors.tasks[:9], failed), "step": 3}),
    }
    assert verdict.best(evaluations, decoding="greedy", max_error_share=0.05) == "two abstentions"
    assert verdict.best(evaluations, decoding="greedy", max_error_share=0.1) == "one error"
    assert verdict.best({"x": evaluations["three abstentions"]}, decoding="greedy", max_error_share=1.0) is None


def test_the_best_is_ranked_by_the_decoding_that_is_asked_for():
    evaluations = {
        "one": evaluation([RIGHT] * 10, [[WRONG]] * 10),
        "two": evaluation([WRONG] * 10, [[RIGHT]] * 10, step=1),
    }
    assert verdict.best(evaluations, decoding="greedy", max_error_share=0.0) == "one"
    assert verdict.best(evaluations, decoding="sampled", max_error_share=0.0) == "two"


def test_an_evaluation_without_a_single_grade_has_no_rate():
    found = verdict.score("final", evaluation([UNGRADED] * 3)).greedy
    assert (found.n, found.errors, found.pass_rate, found.pass_rate_ci95, found.mean_reward) == (0, 3, None, None, None)


@pytest.mark.parametrize(
    ("n", "passed", "k", "chance"),
    [(4, 0, 2, 0.0), (4, 4, 2, 1.0), (4, 1, 1, 0.25), (4, 1, 2, 0.5), (4, 2, 2, 5 / 6), (8, 7, 8, 1.0)],
)
def test_pass_at_k_is_the_share_of_draws_with_a_passing_sample(n: int, passed: int, k: int, chance: float):
    draws = list(itertools.combinations([True] * passed + [False] * (n - passed), k))
    assert verdict.pass_at_k(n, passed, k) == pytest.approx(chance)
    assert verdict.pass_at_k(n, passed, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_pass_at_k_is_told_for_as_many_samples_as_every_task_has():
    samples = [[RIGHT, WRONG, WRONG, WRONG], [WRONG, WRONG, UNGRADED]]
    score = verdict.score("x", evaluation([RIGHT, RIGHT], samples))
    assert score.sampled.pass_at == {1: pytest.approx(0.125), 2: pytest.approx(0.25)}
    assert score.greedy.pass_at == {}


def test_what_makes_two_evaluations_incomparable_is_said():
    found = verdict.judge(
        evaluation([WRONG] * 20), evaluation([RIGHT] * 20), decoding="greedy", seed=SEED, but="the rewards differ"
    )
    assert (found.outcome, found.sentence) == ("not_comparable", "Not comparable: the rewards differ.")


def repeated(found: Evaluation, times: int) -> Evaluation:
    """The same evaluation with each prompt `times` in a row of the file."""
    tasks = [task for task in found.tasks for _ in range(times)]
    numbered = tuple(task.model_copy(update={"task": number}) for number, task in enumerate(tasks))
    return found.model_copy(update={"tasks": numbered})


@pytest.mark.parametrize("decoding", ["greedy", "sampled"])
def test_copies_of_a_prompt_make_nothing_more_certain(decoding):
    before, after = evaluation([WRONG] * 5 + [RIGHT] * 5), evaluation([RIGHT] * 10)
    copies = judge(repeated(before, 20), repeated(after, 20), decoding=decoding)
    assert copies == judge(before, after, decoding=decoding)
    assert (copies.outcome, copies.tasks, copies.p_value) == ("no_significant_change", 10, 0.0625)


def test_one_prompt_however_often_is_one_task():
    found = judge(repeated(evaluation([WRONG]), 50), repeated(evaluation([RIGHT]), 50))
    assert found.sentence == "Not comparable: fewer than 2 held-out tasks; use at least 6."


@pytest.mark.parametrize(("passing", "fixed"), [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)])
def test_a_repeated_prompt_passes_when_more_than_half_of_its_rows_do(passing, fixed):
    before = repeated(evaluation([WRONG] * 10), 4)
    rewards = [RIGHT] * passing + [WRONG] * (4 - passing)
    tasks = [
        task.model_copy(update={"greedy": answer(reward)}) for task, reward in zip(before.tasks, rewards, strict=False)
    ]
    found = judge(before, before.model_copy(update={"tasks": (*tasks, *before.tasks[4:])}))
    assert (found.fixed, found.tasks) == (fixed, 10)
    assert found.mean_reward_change == pytest.approx(passing / 4 / 10)


def test_an_interval_counts_a_repeated_prompt_once_with_the_share_of_its_rows():
    once = evaluation([RIGHT, WRONG] * 5)
    assert verdict.score("x", repeated(once, 8)).greedy.pass_rate_ci95 == verdict.score("x", once).greedy.pass_rate_ci95
    half = repeated(evaluation([WRONG] * 10), 2)
    tasks = [task.model_copy(update={"greedy": answer(task.task % 2)}) for task in half.tasks]
    found = verdict.score("x", half.model_copy(update={"tasks": tuple(tasks)})).greedy
    assert (found.n, found.pass_rate, found.pass_rate_ci95) == (20, 0.5, verdict.wilson(5, 10))
