"""Stopping, and going on as if nothing had been."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from core.status import Stage
from tests.polling import wait_until
from tests.servers.small_disk import ROOM_BYTES
from tests.worker.training.runs import Ended, Trainers, failed_with
from worker.audit import tells_time
from worker.run_directory import (
    STOPPED_EXIT_CODE,
    CheckpointSaved,
    CheckpointScored,
    EvaluationDone,
    Notice,
    RunDirectory,
    StageStarted,
    StepDone,
)

LONG: dict[str, Any] = {
    "hyperparameters": {"max_steps": 6, "num_iterations": 2, "rollouts_per_pass": 4, "lr_scheduler_type": "linear"},
    "adapter": {"dropout": 0.1},
    "evaluation": {"every_steps": 4, "samples_per_task": 6},
    "checkpoints": {"every_steps": 1},
}
SLOW = """\
import time

def reward(completions, want, trainer_state, **columns):
    time.sleep(%r.get((trainer_state.global_step, len(completions)), 0))
    return [sum(letter in letters for letter in text) / 10 for text, letters in zip(completions, want)]
"""
"""What `runs.WANTED_LETTERS` says, slowly: seconds by the steps that are done, and by how many it is asked about."""
SLOW_IN_STEPS_1_AND_3 = SLOW % {(0, 8): 5, (2, 8): 20}
SLOW_EVERYWHERE = SLOW % dict.fromkeys([(0, 8), (2, 8), (4, 8)], 3)
SLOW_EVALUATION_AFTER_STEP_4 = SLOW % {(4, 4): 5}


@pytest.fixture(scope="module")
def uninterrupted(trainers: Trainers) -> Ended:
    """Two optimizer steps a generation, four an epoch: the hardest case for resuming."""
    ended = trainers.train("uninterrupted", **LONG)
    assert ended.exit_code == 0, ended.log
    return ended


def numbers(ended: Ended, after: int) -> dict[int, dict[str, float | None]]:
    """The metrics of later steps, without what a clock says."""
    return {
        step: {name: value for name, value in metrics.items() if not tells_time(name)}
        for step, metrics in ended.steps.items()
        if step > after
    }


def is_grading_step_3(run: RunDirectory) -> bool:
    pulse = run.read_pulse()
    return pulse is not None and (pulse.phase, pulse.step) == ("reward", 2)


@pytest.mark.parametrize("step", [1, 2, 4, 5, 6])
def test_a_resumed_run_ends_as_if_it_had_never_stopped(trainers: Trainers, uninterrupted: Ended, step: int) -> None:
    resumed = trainers.train(f"resumed-{step}", resume=(uninterrupted.run, step), **LONG)
    assert resumed.exit_code == 0, resumed.log
    assert numbers(resumed, step) == numbers(uninterrupted, step)
    assert resumed.weights == uninterrupted.weights
    assert resumed.evaluation("final").tasks == uninterrupted.evaluation("final").tasks
    ours, theirs = resumed.outcome.summary, uninterrupted.outcome.summary
    assert ours is not None
    assert theirs is not None
    apart = {"phases", "environment"}
    assert ours.model_dump(exclude=apart) == theirs.model_dump(exclude=apart)


def test_a_fully_trained_model_resumes_exactly(trainers: Trainers) -> None:
    layout: dict[str, Any] = {
        "adapter": {"method": "full"},
        "hyperparameters": {"learning_rate": 0.001, "beta": 0.1},
        "checkpoints": {"every_steps": 1},
    }
    whole = trainers.train("whole", **layout)
    assert whole.exit_code == 0, whole.log
    resumed = trainers.train("whole-resumed", resume=(whole.run, 2), **layout)
    assert numbers(resumed, 2) == numbers(whole, 2)
    assert resumed.weights == whole.weights


def test_told_to_stop_it_leaves_at_a_step_with_a_checkpoint(trainers: Trainers, uninterrupted: Ended) -> None:
    layout = {**LONG, "checkpoints": {"every_steps": 100}}
    run = trainers.lay_out("stopped", rewards={"letters": SLOW_EVERYWHERE}, **layout)
    process = trainers.start(run)
    wait_until(lambda: any(isinstance(entry, StepDone) for entry, _ in run.read_journal()), what="a step")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert stopped.exit_code == STOPPED_EXIT_CODE, stopped.log
    step = stopped.outcome.step
    assert (stopped.outcome.kind, stopped.entries(CheckpointSaved)[-1].step) == ("stopped", step)
    assert 1 <= step < 6
    resumed = trainers.train("stopped-resumed", resume=(run, step), **layout)
    assert resumed.weights == uninterrupted.weights


def test_told_to_stop_during_an_evaluation_it_takes_it_after_resuming(trainers: Trainers, uninterrupted: Ended) -> None:
    run = trainers.lay_out("stopped-evaluating", **LONG)
    process = trainers.start(run)
    wait_until(lambda: is_evaluating_after_step(run, 4), what="the evaluation after step 4")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.outcome.kind, stopped.outcome.step) == ("stopped", 4)
    assert run.read_evaluation("step-4") is None
    resumed = trainers.train("evaluated-later", resume=(run, 4), **LONG)
    assert resumed.evaluation("step-4").tasks == uninterrupted.evaluation("step-4").tasks
    assert resumed.weights == uninterrupted.weights
    scores, expected = resumed.entries(CheckpointScored), uninterrupted.entries(CheckpointScored)
    assert [entry.model_dump(exclude={"at"}) for entry in scores] == [
        entry.model_dump(exclude={"at"}) for entry in expected
    ]


def test_told_to_go_in_an_evaluation_of_an_unsaved_step_it_saves_the_step_and_leaves(
    trainers: Trainers, uninterrupted: Ended
) -> None:
    """To wait for the batch under way could take the whole grace."""
    layout = {**LONG, "checkpoints": {"every_steps": 100}}
    rewards = {"letters": SLOW_EVALUATION_AFTER_STEP_4}
    run = trainers.lay_out("hurried-evaluating", rewards=rewards, baseline=uninterrupted.run, **layout)
    process = trainers.start(run)
    wait_until(lambda: is_evaluating_after_step(run, 4), what="the evaluation after step 4")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.exit_code, stopped.outcome.step) == (STOPPED_EXIT_CODE, 4), stopped.log
    assert stopped.entries(Notice)[-1].data["decision"] == "save_last"
    assert [entry.step for entry in stopped.entries(CheckpointSaved)] == [4]
    resumed = trainers.train("hurried-evaluating-resumed", resume=(run, 4), **layout)
    assert resumed.evaluation("step-4").tasks == uninterrupted.evaluation("step-4").tasks
    assert resumed.weights == uninterrupted.weights


def test_told_to_go_in_its_first_step_it_leaves_at_once(trainers: Trainers, uninterrupted: Ended) -> None:
    rewards = {"letters": SLOW_IN_STEPS_1_AND_3}
    run = trainers.lay_out("first-step", rewards=rewards, baseline=uninterrupted.run, **LONG)
    process = trainers.start(run)
    wait_until(lambda: has_begun_training(run) and (pulse := run.read_pulse()) and pulse.phase == "reward", what="it")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.exit_code, stopped.outcome.step, stopped.steps) == (STOPPED_EXIT_CODE, 0, {}), stopped.log


def test_told_to_go_while_torch_is_imported_it_does_not_even_load_the_model(trainers: Trainers) -> None:
    run = trainers.lay_out("told-early", **LONG)
    stopped = trainers.finish(run, trainers.start(run, told_before_main))
    assert (stopped.outcome.kind, stopped.entries(StageStarted)) == ("stopped", []), stopped.log


def test_told_to_go_in_a_step_that_does_not_fit_it_saves_the_one_before_and_leaves(
    trainers: Trainers, uninterrupted: Ended
) -> None:
    """The rest of the step is not paid for, and of what came before nothing is lost."""
    layout = {**LONG, "checkpoints": {"every_steps": 100}}
    run = trainers.lay_out("hurried", grace_s=0.2, rewards={"letters": SLOW_IN_STEPS_1_AND_3}, **layout)
    process = trainers.start(run)
    wait_until(lambda: is_grading_step_3(run), what="step 3's grading")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.exit_code, stopped.outcome.kind) == (STOPPED_EXIT_CODE, "stopped"), stopped.log
    assert [entry.step for entry in stopped.entries(CheckpointSaved)] == [stopped.outcome.step] == [2]
    assert [entry.code for entry in stopped.entries(Notice)] == ["fast_path_off", "step_abandoned"]
    assert stopped.entries(Notice)[-1].data["decision"] == "save_last"
    resumed = trainers.train("hurried-resumed", resume=(run, 2), **layout)
    assert [(entry.code, entry.level) for entry in resumed.entries(Notice)] == [("fast_path_off", "info")]
    assert numbers(resumed, 2) == numbers(uninterrupted, 2)
    assert resumed.weights == uninterrupted.weights
    ours, theirs = resumed.outcome.summary, uninterrupted.outcome.summary
    assert ours is not None
    assert theirs is not None
    assert ours.model_dump(exclude={"phases", "environment"}) == theirs.model_dump(exclude={"phases", "environment"})


def test_told_to_go_where_an_upload_does_not_fit_it_saves_nothing_and_says_why(trainers: Trainers) -> None:
    layout = {**LONG, "checkpoints": {"every_steps": 100}}
    run = trainers.lay_out("slow-store", grace_s=10.0, rewards={"letters": SLOW_IN_STEPS_1_AND_3}, **layout)
    run.write_upload_s(60.0)
    process = trainers.start(run)
    wait_until(lambda: is_grading_step_3(run), what="step 3's grading")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.exit_code, stopped.outcome.kind) == (STOPPED_EXIT_CODE, "stopped"), stopped.log
    assert stopped.entries(CheckpointSaved) == []
    data = stopped.entries(Notice)[-1].data
    assert (data["decision"], data["step"], data["upload_s"], data["grace_s"]) == ("leave", 2, 60.0, 10.0)


def test_a_disk_that_fills_during_a_save_is_named_and_the_half_written_draft_is_gone(
    trainers: Trainers, small_disk: Path
) -> None:
    run = trainers.lay_out("full-disk", **{**LONG, "checkpoints": {"every_steps": 2}})
    (run.path / "checkpoints").rmdir()
    (run.path / "checkpoints").symlink_to(small_disk)
    (small_disk / "ballast").write_bytes(bytes(ROOM_BYTES - 16_384))
    failed_with(trainers.finish(run, trainers.start(run)), "disk_full")
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_told_to_pause_it_takes_the_time_to_save(trainers: Trainers) -> None:
    hyperparameters = {**LONG["hyperparameters"], "max_steps": 100_000}
    layout = {**LONG, "hyperparameters": hyperparameters, "checkpoints": {"every_steps": 1_000_000}}
    run = trainers.lay_out("paused", grace_s=0.0, **layout)
    process = trainers.start(run)
    wait_until(lambda: any(isinstance(entry, StepDone) for entry, _ in run.read_journal()), what="a step")
    os.kill(process.pid or 0, signal.SIGINT)
    stopped = trainers.finish(run, process)
    assert stopped.entries(CheckpointSaved)[-1].step == stopped.outcome.step


def test_told_to_pause_while_it_decides_what_to_save_it_has_saved_what_it_leaves(
    trainers: Trainers, uninterrupted: Ended
) -> None:
    layout = {**LONG, "evaluation": {}, "checkpoints": {"every_steps": 100}}
    run = trainers.lay_out("told-late", baseline=uninterrupted.run, **layout)
    stopped = trainers.finish(run, trainers.start(run, told_late_main))
    assert stopped.outcome.kind == "stopped", stopped.log
    assert stopped.entries(CheckpointSaved)[-1].step == stopped.outcome.step


def test_told_to_go_before_training_it_leaves_at_once(trainers: Trainers) -> None:
    run = trainers.lay_out("early", **{**LONG, "evaluation": {"samples_per_task": 64}})
    process = trainers.start(run)
    wait_until(lambda: (pulse := run.read_pulse()) and pulse.phase == "evaluation", what="the baseline")
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.exit_code, stopped.outcome.kind, stopped.steps) == (STOPPED_EXIT_CODE, "stopped", {})


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_branch_begins_as_the_checkpoint_was(trainers: Trainers, method: str) -> None:
    """Its baseline is the evaluation that the other run took there, answer by answer."""
    layout: dict[str, Any] = {
        "adapter": {"method": method},
        "hyperparameters": {"max_steps": 4, "learning_rate": 0.05 if method == "lora" else 0.005},
        "evaluation": {"every_steps": 2},
        "checkpoints": {"every_steps": 2},
    }
    parent = trainers.train(f"parent-{method}", **layout)
    branch = trainers.train(f"branch-{method}", start=(parent.run, 2), **layout)
    assert branch.exit_code == 0, branch.log
    assert branch.evaluation("baseline").tasks == parent.evaluation("step-2").tasks
    assert branch.evaluation("baseline").tasks != parent.evaluation("baseline").tasks
    assert branch.weights != parent.weights


def test_the_baseline_of_an_earlier_attempt_is_reused(trainers: Trainers, uninterrupted: Ended) -> None:
    run = trainers.lay_out("reusing")
    shutil.copy(uninterrupted.run.evaluation("baseline"), run.evaluation("baseline"))
    ended = trainers.finish(run, trainers.start(run))
    assert ended.exit_code == 0, ended.log
    assert Stage.BASELINE not in [entry.stage for entry in ended.entries(StageStarted)]
    assert [entry.name for entry in ended.entries(EvaluationDone)] == ["final"]
    assert ended.evaluation("baseline") == uninterrupted.evaluation("baseline")


def told_late_main(path: str) -> int:
    """Told to pause right after the first time that it asks, once step 2 is done."""
    from worker.training.job import run_job
    from worker.training.phases import PhaseTimer
    from worker.training.stop import StopRequest
    from worker.training.team.followers import Followers

    run = RunDirectory(Path(path))

    class ToldLate(StopRequest):
        asked = 0

        @property
        def wanted(self) -> bool:
            self.asked += any(isinstance(entry, StepDone) and entry.step == 2 for entry, _ in run.read_journal())
            return self.asked > 1

        @wanted.setter
        def wanted(self, value: bool) -> None:
            assert not value

    run.write_outcome(run_job(run, run.read_plan(), PhaseTimer(), ToldLate(), Followers(run, 0)))
    return 0


def has_begun_training(run: RunDirectory) -> bool:
    return any(isinstance(entry, StageStarted) and entry.stage is Stage.TRAINING for entry, _ in run.read_journal())


def told_before_main(path: str) -> int:
    """What `worker.training.run` does, told to stop before its imports were done."""
    from worker.training.job import run_job
    from worker.training.phases import PhaseTimer
    from worker.training.stop import StopRequest
    from worker.training.team.followers import Followers

    run, stop = RunDirectory(Path(path)), StopRequest()
    stop.wanted = True
    run.write_outcome(run_job(run, run.read_plan(), PhaseTimer(), stop, Followers(run, 0)))
    return 0


def is_evaluating_after_step(run: RunDirectory, step: int) -> bool:
    entries = [entry for entry, _ in run.read_journal()]
    stepped = any(isinstance(entry, StepDone) and entry.step == step for entry in entries)
    return stepped and isinstance(entries[-1], StageStarted) and entries[-1].stage is Stage.EVALUATING
