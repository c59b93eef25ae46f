"""What was paid for silent groups, and what the fast path did not have to."""

import pytest

from core.learning.bill import bill_of
from core.learning.numbers import StepNumbers

SECONDS = {"generation": 4.0, "reward": 1.0, "logprobs_no_grad": 0.0, "forward": 2.0, "backward": 3.0, "optimizer": 0.5}
OTHER_S, EVALUATION_S = 0.5, 20.0
STEP_S = sum(SECONDS.values()) + OTHER_S


def step(number: int, *, silent: float | None, skipped: float = 0.0, grad_norm: float = 0.3, **seconds: float):
    phases = {f"phase/{name}_s": value for name, value in (SECONDS | seconds).items()}
    total = sum(phases.values()) + OTHER_S
    signal = {} if silent is None else {"signal/silent_share": silent, "fast/rollouts_skipped": skipped}
    return StepNumbers(number, {**phases, **signal, "phase/total_s": total, "grad_norm": grad_norm})


def test_before_the_first_step_there_is_no_bill():
    assert bill_of([]) is None


def test_generation_and_rewards_of_silent_groups_are_paid_whatever_the_fast_path_does():
    bill = bill_of([step(1, silent=0.25, skipped=16)])
    assert (bill.generation_s, bill.reward_s, bill.passes_s, bill.other_s) == (1.0, 0.25, 0.0, 0.0)
    assert bill.without_gradient_s == 1.25
    assert bill.share == pytest.approx(1.25 / STEP_S)


def test_without_the_fast_path_their_passes_are_paid_too():
    bill = bill_of([step(1, silent=0.25)])
    assert bill.passes_s == 0.25 * 5
    assert bill.spared_s == 0.0


def test_what_was_spared_is_reckoned_at_the_rate_of_the_groups_that_taught():
    bill = bill_of([step(1, silent=0.75, skipped=48), step(2, silent=0.25, skipped=16)])
    assert bill.spared_s == pytest.approx(10.0)  # one step's groups took 10 s, and one step's were left out


def test_a_step_whose_gradient_was_zero_is_paid_for_nothing_as_a_whole():
    bill = bill_of([step(1, silent=1.0, skipped=64, grad_norm=0.0, forward=0.01, backward=0.0)])
    assert bill.without_gradient_s == pytest.approx(bill.seconds - 0.01)
    assert bill.share == pytest.approx(1.0, abs=0.01)
    assert bill.spared_s is None, "nothing says how long a group would have taken"


def test_the_rest_of_a_silent_step_that_the_kl_term_gave_a_gradient_was_not_for_nothing():
    bill = bill_of([step(1, silent=1.0, grad_norm=0.3)])
    assert (bill.passes_s, bill.other_s) == (5.0, 0.0)


def test_evaluations_and_checkpoints_on_a_silent_steps_line_were_not_for_nothing():
    bill = bill_of([step(1, silent=1.0, skipped=64, grad_norm=0.0, evaluation=EVALUATION_S, checkpoint=2.0)])
    assert bill.seconds == STEP_S + EVALUATION_S + 2.0
    assert bill.without_gradient_s <= STEP_S


def test_the_pass_before_anything_is_left_out_is_always_paid():
    bill = bill_of([step(1, silent=0.5, skipped=32, logprobs_no_grad=3.0)])
    assert bill.passes_s == 1.5


def test_replaced_groups_were_generated_and_went_into_no_pass():
    """Of 16 groups 8 were silent, and 6 of these gave way to mixed ones: 2 of the 8 that were trained on are silent."""
    drawn = step(1, silent=0.5)
    drawn.metrics.update({"draw/groups_generated": 16, "draw/trained_silent_share": 0.25})
    bill = bill_of([drawn])
    assert (bill.generation_s, bill.reward_s, bill.passes_s) == (0.5 * 4, 0.5, 0.25 * 5)


def test_what_trl_calls_silent_with_rewards_scaled_by_the_batch_is_no_part_of_the_bill():
    """Its `frac_reward_zero_std` is of the batch's deviation then: 0 or 1."""
    drawn = step(1, silent=0.5)
    drawn.metrics.update({"draw/groups_generated": 8, "draw/trained_silent_share": 0.5, "frac_reward_zero_std": 0.0})
    bill = bill_of([drawn])
    assert (bill.generation_s, bill.reward_s, bill.passes_s) == (0.5 * 4, 0.5, 0.5 * 5)


def test_a_step_that_reuses_rollouts_is_as_silent_as_the_one_that_made_them():
    bill = bill_of([step(1, silent=0.5), step(2, silent=None, generation=0.0, reward=0.0)])
    assert bill.passes_s == 0.5 * 5 * 2
