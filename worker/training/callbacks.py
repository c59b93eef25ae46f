"""After every optimizer step: its numbers into the journal; then what is due: an evaluation, a checkpoint, the end."""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from core.failpoints import failpoint
from core.spec import JobSpec
from core.status import Stage
from core.strict_json import json_number
from worker.run_directory import CheckpointSaved, CheckpointScored, Notice, RunDirectory, StageStarted, StepDone
from worker.training.checkpoints import save_checkpoint
from worker.training.failures import SignalStarved
from worker.training.fast_path.support import UNKNOWN_TRL
from worker.training.grader_log import GraderLog
from worker.training.interval import SaveClock
from worker.training.moment import Account, Moment
from worker.training.pace import Need, Pace
from worker.training.phases import Phase, PhaseTimer
from worker.training.progress import Progress
from worker.training.scoreboard import Scoreboard
from worker.training.stop import Stopped, StopRequest, TrainingOver
from worker.training.stop_rule import Ruling, judge_patience, judge_silence
from worker.training.team.team import GoOn
from worker.training.trainer import PodiumTrainer

CHECKPOINT_METRICS = ("loss", "reward", "grad_norm", "entropy", "kl")


class StepEnd(TrainerCallback):
    """A step's line is written before its evaluation and its checkpoint, so it never waits for them.

    Its `phase/..._s` cover the wall time since the line before it: they include the evaluation and the checkpoint
    that followed the previous step, and all lines of an attempt add up to its training stage.
    """

    def __init__(
        self,
        trainer: PodiumTrainer,
        run: RunDirectory,
        spec: JobSpec,
        scoreboard: Scoreboard,
        phases: PhaseTimer,
        stop: StopRequest,
        save_clock: SaveClock,
        pace: Pace,
    ) -> None:
        self._trainer = trainer
        self._run = run
        self._spec = spec
        self._scoreboard = scoreboard
        self._phases = phases
        self._stop = stop
        self._save_clock = save_clock
        self._grader_log = GraderLog(trainer.rewards, run)
        self._saved_step = scoreboard.progress.step
        self._others: list[Account] = []
        """What the other processes of the run have told of the last step."""
        self._moment: Moment | None = None
        """After the last step; None while the weights are being changed, and before any step was taken."""
        self._metrics: dict[str, float | None] = {}
        """Of that step, as its checkpoint shows them."""
        self._pace = pace
        stop.is_saved = self._is_saved
        stop.time_to_safe = self._time_to_safe
        stop.save_last_step = self.save_last_good

    def save_last_good(self) -> bool:
        """Save the last step that was taken, if it is not: the next one will not be, now. Whether it is saved."""
        moment = self._moment
        if moment is not None and self._saved_step != moment.state.global_step:
            moment.bring_back(self._trainer)
            self._others = list(moment.others)
            self._save(moment.state.global_step, moment.progress, self._metrics, is_best=False)
        return self._saved_step == self._progress.step

    def _is_saved(self) -> bool:
        """As during an evaluation of what was saved before it: to leave costs the evaluation alone."""
        return not self._pace.in_step and self._saved_step == self._progress.step

    def _time_to_safe(self) -> Need:
        """The upload of an earlier checkpoint may be under way: it comes first."""
        need, upload_s = self._time_to_saved(), self._run.read_upload_s()
        if upload_s is None:
            return need
        uploads = 2 if any(self._run.checkpoints.glob("step-*")) else 1
        return replace(need, upload_s=uploads * upload_s)

    def _time_to_saved(self) -> Need:
        """A step whose weights are being changed is as good as done, and one that is done need not wait for what
        follows it: an evaluation may take minutes.
        """
        need = self._pace.time_to_safe()
        if self._moment is None:
            return replace(need, step_s=0.0) if self._progress.step > self._saved_step else need
        return need if self._pace.in_step or self._pace.is_saving else replace(need, step_s=math.inf)

    @property
    def _progress(self) -> Progress:
        return self._scoreboard.progress

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the evaluation that a stop kept the earlier attempt from, or enter the one that it took after saving."""
        step = self._progress.step
        self._grader_log.tell(step)
        if self._evaluation_is_due(step) and _name(step) not in self._progress.scores:
            reused = self._scoreboard.reuse(_name(step))
            if reused is None:
                self._evaluate_saved(step)
            else:
                self._tell_score(step, reused)
            self._stop.check()
            self._rule_on_patience()
            if self._progress.ended_early is not None:
                self._trainer.team.share(GoOn(training_ends=True))
                raise TrainingOver
        self._tell_obstacles()
        self._phases.lap()
        self._save_clock.begin()
        self._pace.begin_step()
        self._trainer.team.share(GoOn())

    def _tell_obstacles(self) -> None:
        """What of the fast path is off, once an attempt: another may run in another environment."""
        off = {saving.value: reason for saving, reason in self._trainer.obstacles.items()}
        if self._spec.hyperparameters.fast_path and off:
            reasons = "; ".join(f"{saving}: {reason}" for saving, reason in off.items())
            message = f"Part of the fast path is off. {reasons}."
            level: Literal["info", "warn"] = "info"
            if UNKNOWN_TRL in off.values():
                message, level = f"The fast path is off, TRL trains by itself: {UNKNOWN_TRL}.", "warn"
            self._run.append(Notice(at=time.time(), level=level, code="fast_path_off", message=message, data=off))

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._moment = None
        self._phases.enter(Phase.OPTIMIZER)

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._phases.leave()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """The last thing that happens in a step. TRL logs once more when training ends, without a loss."""
        if logs is None or "loss" not in logs:
            return
        state.log_history.clear()
        self._hear_the_others()
        step = self._progress.step = state.global_step
        self._progress.tally.steps_without_gradient += logs.get("grad_norm") == 0
        self._pace.end_step()
        metrics = self._metrics = self._report(step, logs)
        failpoint("step.reported")
        starved = self._rule_on_silence(step)
        self._moment = Moment.now(self._trainer, self._progress, self._others)
        self._grader_log.tell(step)
        if starved is not None:
            raise starved
        is_best = self._evaluation_is_due(step) and not self._stop.wanted and self._evaluate_step(step, metrics)
        ends = self._stop.wanted or self._progress.ended_early is not None
        if self._saved_step != step and (ends or is_best or self._checkpoint_is_due(step)):
            self._save(step, self._progress, metrics, is_best=is_best)
        control.should_training_stop |= ends
        if not control.should_training_stop:
            self._pace.begin_step()
        self._trainer.team.share(GoOn(training_ends=control.should_training_stop))

    def _hear_the_others(self) -> None:
        _, *self._others = self._trainer.team.gather()
        self._progress.tally.trained_tokens += sum(account.trained_tokens for account in self._others)

    def _report(self, step: int, logs: Mapping[str, Any]) -> dict[str, float | None]:
        lap = {f"phase/{phase}_s": seconds for phase, seconds in self._phases.lap().items() if phase != Phase.LOAD}
        numbers = {**self._trainer.take_batch_metrics(), **logs, **lap, "phase/total_s": sum(lap.values())}
        metrics = {name: None if value is None else json_number(float(value)) for name, value in numbers.items()}
        self._run.append(StepDone(at=time.time(), step=step, metrics=metrics))
        if (share := metrics.get("signal/silent_share")) is not None:
            self._progress.silence.add(share, window=self._spec.stop.window)
        return {name: metrics[name] for name in CHECKPOINT_METRICS if name in metrics}

    def _rule_on_silence(self, step: int) -> SignalStarved | None:
        """Before the step's moment is kept: a pause begins a new window, and the checkpoint must know."""
        silence = self._progress.silence
        if step >= self._spec.max_steps:
            return None
        match judge_silence(self._spec.stop, silence):
            case Ruling("pause", sentence):
                silence.begin_anew()
                return SignalStarved(sentence)
            case Ruling("stop", sentence):
                self._end_early(sentence)
            case Ruling("warn", sentence):
                silence.has_warned = True
                self._notice("signal_starved", sentence, step=step)
        return None

    def _rule_on_patience(self) -> None:
        ruling = judge_patience(self._spec.stop, list(self._progress.scores.values()))
        if ruling is not None:
            self._end_early(ruling.sentence)

    def _end_early(self, sentence: str) -> None:
        if self._progress.ended_early is None:
            self._progress.ended_early = sentence
            self._notice("ended_early", f"Training ends here. {sentence}", step=self._progress.step)

    def _notice(self, code: str, message: str, *, step: int) -> None:
        self._run.append(Notice(at=time.time(), level="warn", code=code, message=message, data={"step": step}))

    def _evaluation_is_due(self, step: int) -> bool:
        """The last step has the final evaluation."""
        every = self._spec.evaluation.every_steps
        return every is not None and 0 < step < self._spec.max_steps and step % every == 0

    def _checkpoint_is_due(self, step: int) -> bool:
        regular = step % self._spec.checkpoints.every_steps == 0
        is_last = step >= self._spec.max_steps or self._progress.ended_early is not None
        return regular or is_last or self._stop.wanted or self._save_clock.is_due()

    def _evaluate_step(self, step: int, metrics: dict[str, float | None]) -> bool:
        """Add the evaluation to the step's metrics; whether it is the best so far.

        A checkpoint that is due is saved before: a kill inside a long evaluation then costs the evaluation alone.
        """
        if self._checkpoint_is_due(step):
            self._save(step, self._progress, metrics, is_best=False)
            is_best = self._evaluate_saved(step)
        else:
            evaluated, is_best = self._evaluate(step)
            metrics.update(evaluated)
        self._rule_on_patience()
        self._moment = Moment.now(self._trainer, self._progress, self._others)  # with the score
        return is_best

    def _evaluate_saved(self, step: int) -> bool:
        """Evaluate the policy of a checkpoint that is there. Who resumes from it finds the score in the ledger."""
        metrics, is_best = self._evaluate(step)
        if metrics:
            self._tell_score(step, metrics)
        self._save_clock.begin()
        return is_best

    def _tell_score(self, step: int, metrics: dict[str, float | None]) -> None:
        is_best = self._scoreboard.is_best(_name(step))
        self._run.append(CheckpointScored(at=time.time(), step=step, metrics=metrics, is_best=is_best))

    def _evaluate(self, step: int) -> tuple[dict[str, float | None], bool]:
        self._run.append(StageStarted(at=time.time(), stage=Stage.EVALUATING))
        try:
            metrics = self._scoreboard.take(_name(step), step)
        except Stopped:
            return {}, False
        self._run.append(StageStarted(at=time.time(), stage=Stage.TRAINING))
        return metrics, self._scoreboard.is_best(_name(step))

    def _save(self, step: int, progress: Progress, metrics: Mapping[str, float | None], *, is_best: bool) -> None:
        with self._phases.phase(Phase.CHECKPOINT), self._pace.saving() as seconds:
            save_checkpoint(self._trainer, self._run, progress, self._others)
            entry = CheckpointSaved(at=time.time(), step=step, metrics=dict(metrics), is_best=is_best, save_s=seconds())
            self._run.append(entry)
            self._saved_step = step
        self._save_clock.note_save(self._pace.save_cost_s)


def _name(step: int) -> str:
    return f"step-{step}"
