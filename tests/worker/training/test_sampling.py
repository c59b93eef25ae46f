"""Dynamic and adaptive prompt sampling in real runs: what is trained on, what is counted, and that all comes back."""

from collections import Counter
from typing import Any

import pytest

from core.signal import is_silent
from tests.worker.training.runs import Ended, Trainers, failed_with, toy_rows
from tests.worker.training.test_determinism import assert_same_run, numbers, whole
from worker.run_directory import Rollout, RolloutsDone
from worker.training.checkpoints import load_progress

GROUP, ROLLOUTS = 4, 8
SELDOM_MIXED = """\
def reward(completion, want):
    return float(len(want) < 8) if len(completion) > 3 else 0.5 * (len(want) < 8)
"""
NEVER_EQUAL = """\
def reward(completions, **columns):
    return [None if number == 1 else number / 10 for number in range(len(completions))]
"""
FAILS_WHEN_REFILLED = """\
calls = []

def reward(completions, trainer_state, **columns):
    training = len(completions) == 8
    calls.extend([1] * training)
    return ["bad" if training and len(calls) > 1 else 0.5] * len(completions)
"""
BOTH: dict[str, Any] = {"dynamic_sampling": {"max_extra_batches": 2}, "prompt_sampling": {"window": 2}}
HARD: dict[str, Any] = {
    "rows": toy_rows(12),
    "rewards": {"letters": SELDOM_MIXED},
    "hyperparameters": {
        "max_steps": 6,
        "rollouts_per_pass": 4,
        "num_iterations": 2,
        "lr_scheduler_type": "linear",
        **BOTH,
    },
    "adapter": {"dropout": 0.1},
    "evaluation": {"every_steps": 4},
    "checkpoints": {"every_steps": 2, "every_minutes": None},
}
"""Gradient accumulation, two optimizer steps a generation, dropout, and a reward that leaves most groups silent."""


@pytest.fixture(scope="module")
def sampled(trainers: Trainers) -> Ended:
    return whole(trainers.train("sampled", **HARD))


def groups_of(entry: RolloutsDone) -> list[tuple[Rollout, ...]]:
    return [entry.rollouts[start : start + GROUP] for start in range(0, len(entry.rollouts), GROUP)]


def is_mixed(group: tuple[Rollout, ...]) -> bool:
    return not is_silent([rollout.reward for rollout in group if rollout.reward is not None])


def test_killed_at_every_step_it_is_the_same_run(trainers: Trainers, sampled: Ended) -> None:
    """Six attempts are killed after steps 1 to 6, before those are saved; steps 2 and 4 are saved on the way."""
    faults = [f"step.reported@{count}=kill" for count in (1, 2, 3, 2, 3, 2)]
    attempts = trainers.train_killed("sampled-killed", faults, **HARD)
    assert [max(ended.steps) for ended in attempts] == [1, 2, 3, 4, 5, 6, 6]
    assert_same_run(attempts, sampled)
    ours, theirs = (load_progress(ended.run.checkpoint(6)) for ended in (attempts[-1], sampled))
    assert ours == theirs


def test_every_rollout_that_was_generated_is_accounted_for(sampled: Ended) -> None:
    batches, summary = sampled.entries(RolloutsDone), sampled.outcome.summary
    tally = load_progress(sampled.run.checkpoint(6)).tally
    rollouts = [rollout for batch in batches for rollout in batch.rollouts]
    assert len(rollouts) == tally.rollouts > ROLLOUTS * len(batches)
    assert summary is not None
    assert summary.generated_tokens == sum(rollout.completion_tokens for rollout in rollouts)
    groups = [group for batch in batches for group in groups_of(batch)]
    left_out = [rollout for rollout in rollouts if rollout.advantage is None]
    assert summary.left_out_rollouts == len(left_out) == tally.rollouts - ROLLOUTS * len(batches)
    assert summary.left_out_tokens == sum(rollout.completion_tokens for rollout in left_out)
    assert summary.silent_share == 1 - sum(map(is_mixed, groups)) / len(groups)
    for batch in batches:
        assert [rollout.index for rollout in batch.rollouts] == list(range(len(batch.rollouts)))


def test_what_is_left_out_is_silent_and_the_batch_keeps_its_size(sampled: Ended) -> None:
    for batch in sampled.entries(RolloutsDone):
        groups = groups_of(batch)
        trained = [group for group in groups if group[0].advantage is not None]
        assert len(trained) == 2
        assert all(rollout.advantage is not None for group in trained for rollout in group)
        assert [group for group in groups if is_mixed(group)] == [group for group in trained if is_mixed(group)]
        assert all((rollout.advantage != 0) == is_mixed(group) for group in trained for rollout in group)


def test_metrics_speak_of_all_that_was_generated(sampled: Ended) -> None:
    for batch in sampled.entries(RolloutsDone):
        metrics, groups = sampled.steps[batch.step], groups_of(batch)
        rewards = [rollout.reward for rollout in batch.rollouts if rollout.reward is not None]
        mixed = sum(map(is_mixed, groups))
        assert metrics["reward"] == pytest.approx(sum(rewards) / len(rewards))
        assert metrics["rewards/letters/mean"] == pytest.approx(sum(rewards) / len(rewards))
        assert metrics["signal/silent_share"] == pytest.approx(1 - mixed / len(groups))
        assert metrics["signal/effective_groups"] == mixed
        assert metrics["draw/groups_generated"] == len(groups)
        assert metrics["draw/prompts_used"] == len({group[0].row for group in groups})
        replaced = sum(group[0].advantage is None for group in groups[:2])
        assert metrics["draw/groups_replaced"] == replaced


def test_histories_say_of_each_prompt_when_it_disagreed(sampled: Ended) -> None:
    histories = load_progress(sampled.run.checkpoint(6)).histories
    counted, mixed = Counter[int](), Counter[int]()
    for batch in sampled.entries(RolloutsDone):
        for group in groups_of(batch):
            counted[group[0].row] += 1
            mixed[group[0].row] += is_mixed(group)
            assert histories.of(group[0].row).recent[-1].step >= batch.step
    assert {line: one.groups for line, one in histories.prompts.items()} == counted
    assert {line: one.mixed for line, one in histories.prompts.items() if one.mixed} == +mixed


def test_where_nothing_is_silent_dynamic_sampling_changes_nothing(trainers: Trainers) -> None:
    """To the last bit, and so do the metrics: those that TRL counts of a batch, we count in the same way."""
    layout: dict[str, Any] = {"rewards": {"number": NEVER_EQUAL}, "rows": toy_rows(9)}
    plain = whole(trainers.train("never-silent", **layout))
    dynamic = whole(trainers.train("nothing-to-do", **layout, hyperparameters={"dynamic_sampling": {}}))
    assert dynamic.weights == plain.weights
    ours = {
        step: {name: value for name, value in metrics.items() if not name.startswith("draw/")}
        for step, metrics in numbers([dynamic]).items()
    }
    assert ours == numbers([plain])


def test_the_fast_path_is_right_about_what_is_trained_on(trainers: Trainers) -> None:
    layout = HARD | {"adapter": {}, "hyperparameters": {**HARD["hyperparameters"], "audit_every": 1}}
    ended = whole(trainers.train("sampled-audited", **layout))
    errors = [error for metrics in ended.steps.values() if (error := metrics.get("fast/grad_relative_error"))]
    assert errors
    assert max(errors) < 1e-4
    assert any(metrics.get("draw/groups_replaced") for metrics in ended.steps.values())


def test_without_signal_the_bound_holds_and_the_run_is_stopped_as_ever(trainers: Trainers) -> None:
    ended = trainers.train(
        "sampled-starved",
        rows=toy_rows(12),
        rewards={"flat": "def reward(completion, want):\n    return 0.5\n"},
        hyperparameters={"max_steps": 12, "dynamic_sampling": {"max_extra_batches": 2}},
        stop={"silent_share_above": 0.9, "window": 5, "then": "stop"},
    )
    assert max(whole(ended).steps) == 5
    assert {metrics["signal/silent_share"] for metrics in ended.steps.values()} == {1}
    assert {metrics["draw/groups_generated"] for metrics in ended.steps.values()} == {6}
    assert {metrics["grad_norm"] for metrics in ended.steps.values()} == {0}


def test_errors_count_among_all_that_was_generated(trainers: Trainers) -> None:
    paused = trainers.train(
        "sampled-failing",
        rows=toy_rows(12),
        rewards={"flat": FAILS_WHEN_REFILLED},
        hyperparameters={"dynamic_sampling": {"max_extra_batches": 1}},
    )
    assert "8 of 16 rollouts of step 1 could not be graded" in failed_with(paused, "grading_unreliable")
    assert len(paused.rollouts) == 16
