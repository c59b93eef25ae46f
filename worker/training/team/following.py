"""What a process beside the first one does: the same steps of the same trainer, and in between what it is told."""

import traceback
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from core.results import Evaluation
from worker.run_directory import FailureDetail, JournalEntry, Outcome, Pulse, RunDirectory
from worker.training.checkpoints import load_progress
from worker.training.environment import detect_device
from worker.training.evaluate import Evaluator, Round, untouched_training
from worker.training.failures import named_failure
from worker.training.job import Workbench, load_bench, train_on
from worker.training.moment import Account
from worker.training.phases import PhaseTimer
from worker.training.progress import Progress
from worker.training.rewards import Rewards
from worker.training.stop import StopRequest, TrainingOver
from worker.training.team.team import GoOn, Team, join


class SilentRun(RunDirectory):
    """The run directory for those who read it and leave the writing to the first process."""

    def append(self, entry: JournalEntry) -> None:
        return

    def write_pulse(self, pulse: Pulse) -> None:
        return

    def write_evaluation(self, name: str, evaluation: Evaluation) -> None:
        return

    def write_outcome(self, outcome: Outcome) -> None:
        return


def follow(path: Path) -> FailureDetail | None:
    """Ends with the first process; before it only by a failure, which is returned."""
    try:
        _follow(SilentRun(path))
    except Exception as error:  # noqa: BLE001 - the border of the process: every failure has a name
        traceback.print_exc()
        return named_failure(error).detail
    return None


def _follow(run: RunDirectory) -> None:
    plan = run.read_plan()
    progress = Progress() if plan.resume_step is None else load_progress(run.resume)
    progress.tally.trained_tokens = 0
    team = join()
    nobody = Rewards({}, plan.spec.rewards)
    bench = load_bench(run, plan, nobody, detect_device(), progress, PhaseTimer(), StopRequest(), team)
    follower = FollowerStep(team, bench, progress)
    bench.trainer.remove_callback(bench.step_end)
    bench.trainer.add_callback(follower)
    follower.obey()
    train_on(run, plan, bench.trainer, progress)
    follower.obey()


class FollowerStep(TrainerCallback):
    """In the place of `worker.training.callbacks.StepEnd`, whose orders it obeys."""

    def __init__(self, team: Team, bench: Workbench, progress: Progress) -> None:
        self._team = team
        self._bench = bench
        self._progress = progress

    def obey(self) -> bool:
        """Do as told until told to go on; whether training is over then."""
        while True:
            order: GoOn | Round = self._team.share()
            if isinstance(order, GoOn):
                return order.training_ends
            self._answer(self._bench.scoreboard.evaluator, order)

    def _answer(self, evaluator: Evaluator, order: Round) -> None:
        with untouched_training(evaluator.model, evaluator.device):
            evaluator.answer(order)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.obey():
            raise TrainingOver

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if logs is None or "loss" not in logs:
            return
        state.log_history.clear()
        tally = self._progress.tally
        self._team.gather(Account.of(self._bench.trainer, tally.trained_tokens))
        tally.trained_tokens = 0
        self._bench.trainer.take_batch_metrics()
        control.should_training_stop |= self.obey()
