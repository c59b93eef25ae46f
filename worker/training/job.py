"""One run from its plan to its result."""

import math
import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch
from transformers import PrinterCallback

from core.signal_report import ProbeSize, SignalReport
from core.spec import JobSpec
from core.status import Stage
from worker.run_directory import (
    STOPPED_EXIT_CODE,
    Notice,
    Outcome,
    Pulse,
    RunDirectory,
    RunPlan,
    StageStarted,
    Summary,
)
from worker.training import config
from worker.training.callbacks import StepEnd
from worker.training.checkpoints import load_progress
from worker.training.data import RunData, load_data, tokenize, training_set
from worker.training.environment import Device, describe_environment, detect_device
from worker.training.evaluate import Evaluator
from worker.training.export import export_result, name_base
from worker.training.failures import GradingUnreliable, SignalStarved, StaleSampler, named_failure
from worker.training.grader_log import GraderLog
from worker.training.interval import SaveClock
from worker.training.model import check_method, load_policy, load_start, load_tokenizer
from worker.training.pace import Pace
from worker.training.phases import Phase, PhaseTimer
from worker.training.progress import Progress
from worker.training.rewards import GradingWatch, Rewards, open_rewards
from worker.training.sampling.sampler import step_sampler
from worker.training.scoreboard import Scoreboard
from worker.training.signal_probe import probe_signal
from worker.training.stop import Decision, StopChoice, Stopped, StopRequest, TrainingOver
from worker.training.team.followers import Followers
from worker.training.team.team import ALONE, GoOn, Team, lead
from worker.training.trainer import PodiumTrainer
from worker.training.vllm.start import open_sampler


@dataclass(frozen=True, slots=True)
class Workbench:
    """Everything that a run works with, loaded."""

    trainer: PodiumTrainer
    scoreboard: Scoreboard
    step_end: StepEnd
    data: RunData
    device: Device


def run_job(run: RunDirectory, plan: RunPlan, phases: PhaseTimer, stop: StopRequest, followers: Followers) -> Outcome:
    """How the run ended. Never raises: what went wrong is in the outcome, and its traceback on standard error."""
    progress = Progress()
    try:
        if plan.resume_step is not None:
            progress = load_progress(run.resume)
        phases.tell(partial(_show_pulse, run, progress))
        stop.arm(partial(_leave, run, progress), partial(_tell_decision, run, progress), grace_s=plan.stop_grace_s)
        stop.check()
        if plan.probe is not None:
            report = _probe(run, plan, plan.probe, phases, stop)
            return Outcome(kind="finished", step=0, report=report)
        summary = _run(run, plan, progress, phases, stop, followers)
    except Stopped:
        return Outcome(kind="stopped", step=progress.step)
    except Exception as error:  # noqa: BLE001 - the border of the process: every end of a run has a name
        with suppress(OSError):  # the log's disk may be full
            traceback.print_exc()
        return Outcome(kind="failed", step=progress.step, failure=named_failure(error).detail)
    return Outcome(kind="finished", step=progress.step, summary=summary)


def _run(
    run: RunDirectory, plan: RunPlan, progress: Progress, phases: PhaseTimer, stop: StopRequest, followers: Followers
) -> Summary:
    team = ALONE if followers.listener is None else lead(followers.listener, followers.size)
    spec, device = plan.spec, detect_device()
    check_method(spec, device)
    with _rewards_that_tell(run, spec, progress) as rewards:
        with phases.phase(Phase.LOAD):
            bench = load_bench(run, plan, rewards, device, progress, phases, stop, team)
        stop.check()
        if bench.scoreboard.reuse("baseline") is None:
            _start_stage(run, Stage.BASELINE)
            bench.scoreboard.take("baseline", 0)
        _start_stage(run, Stage.TRAINING)
        try:
            _train(run, plan, bench.trainer, progress, stop)
            _start_stage(run, Stage.EVALUATING)
            bench.scoreboard.take("final", progress.step)
        except (GradingUnreliable, SignalStarved, StaleSampler):
            bench.step_end.save_last_good()
            raise
    stop.write_result()
    _start_stage(run, Stage.EXPORTING)
    trainer = bench.trainer
    with phases.phase(Phase.EXPORT):
        export_result(trainer.model, trainer.processing_class, spec, run.adapter, final_step=progress.step)
    return _summarise(plan, bench, progress, phases)


def _probe(run: RunDirectory, plan: RunPlan, size: ProbeSize, phases: PhaseTimer, stop: StopRequest) -> SignalReport:
    spec, device = plan.spec, detect_device()
    check_method(spec, device)
    if device.is_cuda:
        phases.synchronize = torch.cuda.synchronize
    with _rewards_that_tell(run, spec, Progress()) as rewards:
        return probe_signal(run, plan, size, rewards, device, phases, stop)


@contextmanager
def _rewards_that_tell(run: RunDirectory, spec: JobSpec, progress: Progress) -> Iterator[Rewards]:
    """Whatever ends the run: what they printed before is told, once their processes have ended and it is all there."""
    told: Rewards | None = None
    try:
        with open_rewards(run, spec.rewards) as rewards:
            told = rewards
            yield rewards
    finally:
        if told is not None:
            GraderLog(told, run).tell(progress.step, now=True)


def load_bench(
    run: RunDirectory,
    plan: RunPlan,
    rewards: Rewards,
    device: Device,
    progress: Progress,
    phases: PhaseTimer,
    stop: StopRequest,
    team: Team,
) -> Workbench:
    spec = plan.spec
    if device.is_cuda:
        phases.synchronize = torch.cuda.synchronize
    tokenizer = load_tokenizer(plan)
    data = load_data(run, spec, tokenizer)
    _report_data(run, data)
    prompts = training_set(data.training, spec.hyperparameters.prompts_per_step)
    trainer = PodiumTrainer(
        rows=data.training,
        rewards=rewards,
        watch=GradingWatch(spec.grading),
        pass_threshold=spec.pass_threshold,
        tally=progress.tally,
        phases=phases,
        on_rollouts=run.append,
        watched=spec.watch,
        model=load_policy(run, plan, tokenizer, device),
        args=config.grpo_config(spec, device, run.path / ".trl"),
        train_dataset=prompts,
        step_sampler=step_sampler(spec, prompts, data.training, progress.histories),
        processing_class=tokenizer,
        peft_config=config.lora_config(spec),
        fast_path=spec.hyperparameters.fast_path,
        audit_every=spec.hyperparameters.audit_every,
        team=team,
    )
    load_start(trainer.model, run, spec)
    name_base(trainer.model, spec)
    evaluator = Evaluator(trainer.model, tokenizer, trainer.eos_token_ids, data.held_out, rewards, spec, device, stop)
    rewards.on_term = evaluator.on_batch = phases.beat
    evaluator.team = team
    if spec.hyperparameters.use_vllm:
        prompt_ids = tokenize(tokenizer, data.training, spec.chat_template_kwargs)
        trainer.sample_with(open_sampler(trainer, run, spec, prompt_ids, evaluator.tokens_at_once, phases, device))
    scoreboard = Scoreboard(run, evaluator, spec.evaluation, phases, progress)
    trainer.remove_callback(PrinterCallback)
    save_clock = SaveClock(spec.checkpoints.every_minutes, plan.mean_time_between_preemptions_s)
    step_end = StepEnd(trainer, run, spec, scoreboard, phases, stop, save_clock, Pace(plan.save_cost_s))
    trainer.add_callback(step_end)
    return Workbench(trainer, scoreboard, step_end, data, device)


def _train(run: RunDirectory, plan: RunPlan, trainer: PodiumTrainer, progress: Progress, stop: StopRequest) -> None:
    """All steps that are left. Raises `Stopped` when told to stop before the last."""
    stop.check()
    trainer.team.share(GoOn())
    stop.worth_finishing = True
    train_on(run, plan, trainer, progress)
    stop.worth_finishing = False
    if progress.step < plan.spec.max_steps and progress.ended_early is None:
        raise Stopped


def train_on(run: RunDirectory, plan: RunPlan, trainer: PodiumTrainer, progress: Progress) -> None:
    """From the checkpoint in resume/, if there is one; what every process of the run does."""
    has_ended = progress.step >= plan.spec.max_steps or progress.ended_early is not None
    if plan.resume_step is not None and has_ended:
        trainer._load_from_checkpoint(str(run.resume))  # stopped after the last step: `train` would make one more
        return
    with suppress(TrainingOver):
        trainer.train(resume_from_checkpoint=None if plan.resume_step is None else str(run.resume))


def _show_pulse(run: RunDirectory, progress: Progress, phase: Phase, since: float, longest_s: float | None) -> None:
    run.write_pulse(Pulse(phase=phase, since=since, longest_s=longest_s, step=progress.step))


def _tell_decision(run: RunDirectory, progress: Progress, decision: Decision) -> None:
    """Called from a signal handler."""
    need, step = decision.need, progress.step
    is_known = math.isfinite(need.step_s)
    rest = f"takes {need.step_s:.1f} s" if is_known else "may take any time"
    needed = (
        f"the rest of what is under way {rest}, a checkpoint {need.save_s:.1f} s and its upload {need.upload_s:.1f} s,"
        f" as measured; {decision.grace_s:.0f} s are granted."
    )
    outcome = {
        StopChoice.FINISH: f"What is under way after step {step} will be finished and saved: {needed}",
        StopChoice.SAVE_LAST: f"Left after step {step}, with all saved that was done: {needed}",
        StopChoice.LEAVE: f"Left after step {step}, with nothing more saved: {needed}",
    }[decision.choice]
    data = {
        "step": step,
        "decision": decision.choice,
        "step_s": round(need.step_s, 1) if is_known else None,
        "save_s": round(need.save_s, 1),
        "upload_s": round(need.upload_s, 1),
        "needed_s": round(need.total_s, 1) if is_known else None,
        "grace_s": decision.grace_s,
    }
    if decision.choice is StopChoice.FINISH:
        run.append(Notice(at=time.time(), code="step_finished", message=outcome, data=data))
    else:
        run.append(Notice(at=time.time(), level="warn", code="step_abandoned", message=outcome, data=data))


def _leave(run: RunDirectory, progress: Progress) -> NoReturn:
    """Called from a signal handler: end this process now, in the middle of whatever it does."""
    run.write_outcome(Outcome(kind="stopped", step=progress.step))
    os._exit(STOPPED_EXIT_CODE)


def _summarise(plan: RunPlan, bench: Workbench, progress: Progress, phases: PhaseTimer) -> Summary:
    tally = progress.tally
    return Summary(
        final_step=progress.step,
        ended_early=progress.ended_early,
        best_evaluation=progress.best_evaluation or "baseline",
        phases=phases.totals(),
        environment=describe_environment(bench.device),
        trained_tokens=tally.trained_tokens,
        generated_tokens=tally.generated_tokens,
        train_rows=len(bench.data.training),
        held_out_rows=len(bench.data.held_out),
        overlap_rows=bench.data.overlap_rows,
        silent_share=tally.silent_share,
        steps_without_gradient=tally.steps_without_gradient,
        truncated_share=tally.truncated_share,
        ungraded_rollouts=tally.ungraded_rollouts,
        left_out_rollouts=tally.left_out_rollouts,
        left_out_tokens=tally.left_out_tokens,
        resolved_parameters=config.resolved_parameters(plan.spec, bench.device) | bench.trainer.facts,
    )


def _start_stage(run: RunDirectory, stage: Stage) -> None:
    run.append(StageStarted(at=time.time(), stage=stage))


def _report_data(run: RunDirectory, data: RunData) -> None:
    if data.left_out:
        message = f"{data.left_out} rows are left out: their prompts are longer than max_prompt_length"
        run.append(
            Notice(at=time.time(), level="warn", code="rows_left_out", message=message, data={"rows": data.left_out})
        )
    if data.overlap_rows:
        message = f"{data.overlap_rows} held-out rows have prompts that are also trained on: their score flatters"
        run.append(
            Notice(
                at=time.time(), level="warn", code="held_out_overlap", message=message, data={"rows": data.overlap_rows}
            )
        )
