"""One run in two processes: what each of them does, and what becomes of both."""

import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.polling import wait_until
from tests.worker.training.runs import DEADLINE_S, Ended, Trainers, failed_with, toy_rows
from tests.worker.training.test_resume import SLOW_IN_STEPS_1_AND_3, is_grading_step_3, numbers
from worker.run_directory import STOPPED_EXIT_CODE, CheckpointSaved, Pulse, RunDirectory, StepDone

START_S = 180.0
"""The other process loads torch and TRL by itself."""
TASKS = 70
"""More than one batch of held-out tasks: each process answers one."""
LAYOUT: dict[str, Any] = {
    "hyperparameters": {"max_steps": 4, "num_iterations": 2, "rollouts_per_pass": 2},
    "adapter": {"dropout": 0.1},
    "held_out": toy_rows(5 + TASKS)[5:],
    "checkpoints": {"every_steps": 1},
}
TWO: dict[str, Any] = {**LAYOUT, "resources": {"gpus": 2}}


@pytest.fixture(scope="module")
def two(trainers: Trainers) -> Ended:
    ended = trainers.train("two", **TWO)
    assert ended.exit_code == 0, ended.log
    return ended


def followers(leader_pid: int | None) -> list[psutil.Process]:
    children = psutil.Process(leader_pid).children(recursive=True)
    return [child for child in children if "worker.training.team.follow" in " ".join(child.cmdline())]


def a_step_is_done(run: RunDirectory) -> bool:
    return any(isinstance(entry, StepDone) for entry, _ in run.read_journal())


def test_every_rollout_is_graded_and_written_down_once(two: Ended) -> None:
    prompts = {row: prompt["prompt"] for row, prompt in enumerate(toy_rows(5), start=1)}
    assert [rollout.index for rollout in two.rollouts] == [*range(8), *range(8)]
    assert all(prompts[rollout.row] == rollout.prompt.replace(" ", "") for rollout in two.rollouts)
    for start in (0, 8):
        first, second = two.rollouts[start : start + 4], two.rollouts[start + 4 : start + 8]
        assert {rollout.row for rollout in first} != {rollout.row for rollout in second}
        assert sum(rollout.advantage or 0 for rollout in first) == pytest.approx(0, abs=1e-5)
    summary = two.outcome.summary
    assert summary is not None
    assert summary.generated_tokens == sum(rollout.completion_tokens for rollout in two.rollouts)


def test_held_out_tasks_are_shared_out_and_answered_as_one_process_would(trainers: Trainers, two: Ended) -> None:
    one = trainers.train("one", **{**LAYOUT, "hyperparameters": {"max_steps": 1}})
    assert two.evaluation("baseline").tasks == one.evaluation("baseline").tasks
    assert len(two.evaluation("final").tasks) == TASKS


def test_a_run_in_two_processes_resumes_to_the_last_bit(trainers: Trainers, two: Ended) -> None:
    """Between two steps on the same rollouts, of which each process has its own."""
    resumed = trainers.train("two-resumed", resume=(two.run, 1), **TWO)
    assert resumed.exit_code == 0, resumed.log
    assert numbers(resumed, 1) == numbers(two, 1)
    assert resumed.weights == two.weights
    ours, theirs = resumed.outcome.summary, two.outcome.summary
    assert ours is not None
    assert theirs is not None
    apart = {"phases", "environment"}
    assert ours.model_dump(exclude=apart) == theirs.model_dump(exclude=apart)


def test_told_to_go_in_a_step_that_does_not_fit_it_saves_what_both_had_before(trainers: Trainers, two: Ended) -> None:
    layout = {**TWO, "checkpoints": {"every_steps": 100}}
    run = trainers.lay_out("two-hurried", grace_s=0.2, rewards={"letters": SLOW_IN_STEPS_1_AND_3}, **layout)
    process = trainers.start(run)
    wait_until(lambda: is_grading_step_3(run), what="step 3's grading", timeout_s=START_S)
    others = followers(process.pid)
    os.kill(process.pid or 0, signal.SIGTERM)
    stopped = trainers.finish(run, process)
    assert (stopped.exit_code, stopped.outcome.kind) == (STOPPED_EXIT_CODE, "stopped"), stopped.log
    assert [entry.step for entry in stopped.entries(CheckpointSaved)] == [2]
    wait_until(lambda: not any(map(psutil.pid_exists, (one.pid for one in others))), what="the other process is gone")
    resumed = trainers.train("two-hurried-resumed", resume=(run, 2), **layout)
    assert resumed.weights == two.weights


def test_a_process_that_dies_ends_the_run_by_its_name(trainers: Trainers) -> None:
    run = trainers.lay_out("two-killed", **{**TWO, "hyperparameters": {"max_steps": 100_000}})
    process = trainers.start(run)
    wait_until(lambda: a_step_is_done(run), what="a step", timeout_s=START_S)
    (other,) = followers(process.pid)
    other.kill()
    message = failed_with(trainers.finish(run, process), "trainer_crashed")
    assert message == "The process of rank 1 ended with signal 9."


def test_a_process_that_dies_waits_for_what_is_being_saved(trainers: Trainers) -> None:
    run = RunDirectory(trainers.folder / "two-saving")
    run.path.mkdir()
    ended = trainers.finish(run, trainers.start(run, saving_main))
    failed_with(ended, "trainer_crashed")
    assert (run.path / "asked").read_text() == "3", ended.log


def saving_main(path: str) -> int:
    """Another process, which finds no plan, ends while this one saves, and goes on to save for a while."""
    from worker.training.team.followers import Followers

    class Saving(RunDirectory):
        def read_pulse(self) -> Pulse:
            asked = self.path / "asked"
            count = 1 + (int(asked.read_text()) if asked.exists() else 0)
            asked.write_text(str(count))
            return Pulse(phase="checkpoint" if count < 3 else "reward", since=0.0)

    Followers(Saving(Path(path)), 1, unwind_s=0.01)
    threading.Event().wait(DEADLINE_S)
    return 0


def test_a_process_that_fails_says_itself_why(trainers: Trainers, two: Ended) -> None:
    run = trainers.lay_out("two-torn", resume=(two.run, 1), **TWO)
    run.resume.unlink()
    shutil.copytree(two.run.checkpoint(1), run.resume)
    (run.resume / "rollout_buffer_1.pt").unlink()
    message = failed_with(trainers.finish(run, trainers.start(run)), "trainer_crashed")
    assert "FileNotFoundError" in message
    assert "rollout_buffer_1.pt" in message


def test_no_process_outlives_the_first_one_or_leaves_its_group(trainers: Trainers) -> None:
    run = trainers.lay_out("two-orphaned", **TWO)
    process = trainers.start(run)
    (other,) = wait_until(lambda: followers(process.pid), what="the other process")
    assert os.getpgid(other.pid) == os.getpgid(process.pid or 0), "the supervisor signals and kills the group"
    os.kill(process.pid or 0, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(other.pid), what="the other process is gone")
