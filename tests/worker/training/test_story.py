"""What a run says of itself: journal, phases, rollouts, summary, evaluations."""

from statistics import fmean, stdev

import pytest

from core.status import Stage
from tests.worker.training.runs import Ended, Trainers, toy_rows, trainer_main
from worker.run_directory import (
    CheckpointSaved,
    CheckpointScored,
    EvaluationDone,
    Notice,
    RolloutsDone,
    StageStarted,
    StepDone,
)

PHASES = {
    *("generation", "weight_sync", "reward", "logprobs_no_grad", "forward", "backward", "optimizer"),
    *("checkpoint", "rest"),
}


def test_the_journal_tells_the_run_in_order(plain: Ended) -> None:
    stages = [entry.stage for entry in plain.entries(StageStarted)]
    evaluations = [Stage.EVALUATING, Stage.TRAINING] * 2
    assert stages == [
        Stage.PREPARING,
        Stage.BASELINE,
        Stage.TRAINING,
        *evaluations,
        Stage.EVALUATING,
        Stage.EXPORTING,
    ]
    assert [entry.step for entry in plain.entries(StepDone)] == [1, 2, 3, 4, 5, 6]
    assert [entry.step for entry in plain.entries(RolloutsDone)] == [1, 2, 3, 4, 5, 6]
    assert [entry.name for entry in plain.entries(EvaluationDone)] == ["baseline", "step-2", "step-4", "final"]
    assert (plain.outcome.kind, plain.outcome.step) == ("finished", 6)


def test_every_step_carries_trls_metrics_by_their_own_names(plain: Ended) -> None:
    for metrics in plain.steps.values():
        assert {"loss", "grad_norm", "learning_rate", "reward", "reward_std", "frac_reward_zero_std"} <= metrics.keys()
        assert {"rewards/letters/mean", "completions/clipped_ratio", "entropy", "signal/silent_share"} <= metrics.keys()


def test_the_phases_of_a_step_sum_to_its_wall_time(plain: Ended) -> None:
    lines = plain.entries(StepDone)
    for line in lines:
        parts = [value for name, value in line.metrics.items() if name.startswith("phase/") and name != "phase/total_s"]
        assert sum(parts) == pytest.approx(line.metrics["phase/total_s"])  # type: ignore[arg-type]
        assert min(parts) >= 0
        assert {f"phase/{phase}_s" for phase in PHASES} <= line.metrics.keys()
    for phase in ("generation", "reward", "forward", "backward", "optimizer"):
        assert all(line.metrics[f"phase/{phase}_s"] for line in lines), phase
    # A step ends when its phases are summed, and its line is dated a little later: of all the steps between the first
    # line and the last, only those two moments differ, and a busy machine may pause the process in either.
    counted = sum(line.metrics["phase/total_s"] for line in lines[1:])
    assert counted == pytest.approx(lines[-1].at - lines[0].at, rel=0.02, abs=0.25)


def test_the_phases_of_the_process_sum_to_its_total(plain: Ended) -> None:
    assert plain.outcome.summary is not None
    phases = plain.outcome.summary.phases.model_dump()
    total = phases.pop("total")
    assert sum(phases.values()) == pytest.approx(total)
    assert phases["load"] > 0
    assert phases["evaluation"] > 0


def test_rollouts_show_groups_their_rewards_and_trls_advantages(plain: Ended) -> None:
    for entry in plain.entries(RolloutsDone):
        assert [rollout.index for rollout in entry.rollouts] == list(range(8))
        for group in (entry.rollouts[:4], entry.rollouts[4:]):
            assert len({(rollout.row, rollout.prompt) for rollout in group}) == 1
            rewards = [rollout.reward or 0.0 for rollout in group]
            expected = [(reward - fmean(rewards)) / (stdev(rewards) + 1e-4) for reward in rewards]
            assert [rollout.advantage for rollout in group] == pytest.approx(expected, abs=1e-4)
        graded = [rollout.grades["letters"].value for rollout in entry.rollouts]
        assert plain.steps[entry.step]["reward"] == pytest.approx(fmean(value or 0.0 for value in graded))


def test_a_rollout_says_how_it_ended(plain: Ended) -> None:
    reasons = {rollout.finish_reason for rollout in plain.rollouts}
    assert reasons == {"stop", "length"}
    assert all(rollout.completion_tokens == 8 for rollout in plain.rollouts if rollout.finish_reason == "length")


def test_the_summary_counts_the_whole_run(plain: Ended) -> None:
    summary, rollouts = plain.outcome.summary, plain.rollouts
    assert summary is not None
    assert (summary.train_rows, summary.held_out_rows, summary.overlap_rows, summary.final_step) == (5, 4, 0, 6)
    assert summary.generated_tokens == sum(rollout.completion_tokens for rollout in rollouts)
    skipped = sum(metrics["fast/tokens_skipped"] or 0 for metrics in plain.steps.values())
    assert skipped > 0
    assert summary.trained_tokens + skipped == plain.steps[6]["num_tokens"]
    assert summary.truncated_share == fmean(rollout.finish_reason == "length" for rollout in rollouts)
    assert summary.ungraded_rollouts == 0
    assert summary.resolved_parameters["grpo"]["gradient_accumulation_steps"] == 2
    assert summary.environment.device == "cpu"
    assert summary.environment.libraries["trl"] == "1.16.0"


def test_every_evaluation_answers_the_same_tasks(plain: Ended) -> None:
    names = ("baseline", "step-2", "step-4", "final")
    tasks = {tuple((task.task, task.prompt_sha256) for task in plain.evaluation(name).tasks) for name in names}
    assert len(tasks) == 1
    for task in plain.evaluation("final").tasks:
        assert len(task.sampled) == 2
        assert task.greedy.passed == ((task.greedy.reward or 0) >= 0.3)


def test_answers_stand_with_their_tasks(trainers: Trainers) -> None:
    """More tasks than one batch holds, answered in the order of their prompts' lengths."""
    tasks = toy_rows(70)
    ended = trainers.train("many-tasks", held_out=tasks, hyperparameters={"max_steps": 1})
    results = ended.evaluation("final").tasks
    assert [result.task for result in results] == list(range(1, 71))
    for task, result in zip(tasks, results, strict=True):
        for answer in (result.greedy, *result.sampled):
            assert answer.reward == pytest.approx(sum(letter in task["want"] for letter in answer.completion) / 10)


def test_the_best_evaluation_has_a_checkpoint(plain: Ended) -> None:
    assert plain.outcome.summary is not None
    scores = {
        name: fmean(task.greedy.reward or 0 for task in plain.evaluation(name).tasks)
        for name in ("baseline", "step-2", "step-4", "final")
    }
    assert plain.outcome.summary.best_evaluation == max(scores, key=scores.__getitem__)
    scored = {entry.step: entry.is_best for entry in plain.entries(CheckpointScored)}
    for saved in plain.entries(CheckpointSaved):
        so_far = [scores[name] for name in scores if name == "baseline" or name < f"step-{saved.step}"]
        expected = saved.step in {2, 4} and scores[f"step-{saved.step}"] > max(so_far)
        assert (saved.is_best or scored.get(saved.step, False)) is expected
        assert (plain.run.checkpoint(saved.step) / "adapter_model.safetensors").exists()


def test_a_trl_that_the_fast_path_does_not_know_is_a_warning(trainers: Trainers) -> None:
    run = trainers.lay_out("unknown-trl", hyperparameters={"max_steps": 1})
    (notice,) = trainers.finish(run, trainers.start(run, unknown_trl_main)).entries(Notice)
    assert (notice.code, notice.level) == ("fast_path_off", "warn")
    assert set(notice.data) == {"equal_rewards", "silent_rollouts", "correction", "shared_prompts"}


def unknown_trl_main(path: str) -> int:
    from worker.training.fast_path import support

    support.KNOWN_SOURCES = frozenset()
    return trainer_main(path)
