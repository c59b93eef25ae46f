"""The trainer of a chaos job: everything that a supervisor can see of a real one, without torch.

    python -m bench._chaos.trainer COMPUTE_LOG -m worker.training.run RUN_DIR

It "trains" a chain of digests (`bench._chaos.weights`), so that a checkpoint that is torn, stale or somebody else's is
noticed the moment it is loaded. Every slice of its computing goes into COMPUTE_LOG, which all trainers share: what the
ledger says is compared with it. It keeps a grader as its child, obeys SIGTERM, and dies with its supervisor.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Literal, NoReturn

from pydantic import BaseModel, ConfigDict

from bench._chaos.samples import make_answer, make_rollout, make_summary
from bench._chaos.weights import as_metric, weights
from core.failpoints import failpoint
from core.results import Evaluation, TaskResult
from core.status import Stage, StatusReason
from worker.parent import killed_with_parent, parent_environment
from worker.run_directory import (
    FAILED_EXIT_CODE,
    STOPPED_EXIT_CODE,
    CheckpointSaved,
    EvaluationDone,
    FailureDetail,
    Notice,
    Outcome,
    RolloutsDone,
    RunDirectory,
    StageStarted,
    StepDone,
)

SLICE_S = 0.05
SLICES_PER_STEP = 6
TASKS = 4
NOTE = "chaos_note"
"""Code of the events whose data name the attempt that wrote them."""
STATE = "state.json"
WEIGHTS = "adapter_model.safetensors"
GRADER_MARK: Final = "podium-chaos-grader"


class Computed(BaseModel):
    """One line of the compute log."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    at: float
    kind: Literal["slice", "resumed", "bad_load"]
    job_id: str
    attempt: int
    step: int
    pid: int
    supervisor_pid: int
    detail: str = ""


class State(BaseModel):
    """What a checkpoint says of itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    job_id: str
    seed: int
    step: int
    attempt: int
    """The attempt that saved it."""
    weights: str


class Trainer:
    def __init__(self, run: RunDirectory, compute_log: Path) -> None:
        self._run = run
        self._plan = run.read_plan()
        self._seed = self._plan.spec.seed
        self._log = os.open(compute_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._step = self._saved_step = self._plan.resume_step or 0
        self._told_to_stop = False
        self._grader: subprocess.Popen[bytes] | None = None
        signal.signal(signal.SIGTERM, self._remember)

    def train(self) -> NoReturn:
        self._stage(Stage.BASELINE)
        self._load()
        if self._run.read_evaluation("baseline") is None:
            self._evaluate("baseline")
        self._stage(Stage.TRAINING)
        every = self._plan.spec.checkpoints.every_steps
        while self._step < self._plan.spec.max_steps:
            if self._told_to_stop:
                self._stop()
            self._make_step()
            if self._step % every == 0:
                self._save()
        self._finish()

    def _load(self) -> None:
        """Believe nothing: the state must be this job's, of the step that the plan names, with the right weights."""
        if self._plan.resume_step is None:
            return
        state = State.model_validate_json((self._run.resume / STATE).read_text())
        right = weights(self._seed, self._plan.resume_step)
        expected = (self._plan.job_id, self._seed, self._plan.resume_step, right)
        found = (state.job_id, state.seed, state.step, state.weights)
        payload = (self._run.resume / WEIGHTS).read_text()
        if found != expected or payload != right or state.attempt >= self._plan.attempt:
            self._note("bad_load", f"{state!r} with weights {payload[:16]}")
            failure = FailureDetail(reason=StatusReason.DATA_UNUSABLE, code="bad_load", message="A bad checkpoint.")
            self._run.write_outcome(Outcome(kind="failed", step=self._step, failure=failure))
            sys.exit(FAILED_EXIT_CODE)
        self._note("resumed", f"from attempt {state.attempt}")

    def _make_step(self) -> None:
        self._keep_a_grader()
        for _ in range(SLICES_PER_STEP):
            time.sleep(SLICE_S)
            self._note("slice")
        self._step += 1
        metrics = {
            "reward": self._step / self._plan.spec.max_steps,
            "attempt": float(self._plan.attempt),
            "weights": as_metric(weights(self._seed, self._step)),
        }
        self._run.append(StepDone(at=time.time(), step=self._step, metrics=metrics))
        self._run.append(RolloutsDone(at=time.time(), step=self._step, rollouts=(make_rollout(f"step {self._step}"),)))
        failpoint("step.reported")

    def _save(self) -> None:
        """Whole, by rename; the places are those of the real trainer's `worker.training.checkpoints`."""
        folder = self._run.checkpoint(self._step)
        draft = folder.with_name(f".{folder.name}")
        draft.mkdir(parents=True)
        right = weights(self._seed, self._step)
        state = State(
            job_id=self._plan.job_id,
            seed=self._seed,
            step=self._step,
            attempt=self._plan.attempt,
            weights=right,
        )
        (draft / STATE).write_text(state.model_dump_json())
        (draft / WEIGHTS).write_text(right)
        (draft / "optimizer.bin").write_bytes(bytes.fromhex(right) * 2048)
        failpoint("save.draft_written")
        draft.rename(folder)
        failpoint("save.published")
        saved = CheckpointSaved(at=time.time(), step=self._step, metrics={"reward": 0.5}, is_best=False)
        self._run.append(saved)
        self._saved_step = self._step
        data = {"attempt": self._plan.attempt, "step": self._step}
        self._run.append(Notice(at=time.time(), code=NOTE, message=f"Saved step {self._step}.", data=data))

    def _stop(self) -> NoReturn:
        if self._saved_step < self._step:
            self._save()
        self._run.write_outcome(Outcome(kind="stopped", step=self._step))
        sys.exit(STOPPED_EXIT_CODE)

    def _finish(self) -> NoReturn:
        self._stage(Stage.EVALUATING)
        self._evaluate("final")
        self._run.adapter.mkdir()
        (self._run.adapter / WEIGHTS).write_text(weights(self._seed, self._step))
        (self._run.adapter / "adapter_config.json").write_text('{"r": 16}')
        self._run.write_outcome(
            Outcome(kind="finished", step=self._step, summary=make_summary(self._step, held_out_rows=TASKS))
        )
        sys.exit(0)

    def _evaluate(self, name: str) -> None:
        answer = make_answer()
        tasks = tuple(
            TaskResult(task=number, prompt_sha256=f"{number:064x}", greedy=answer, sampled=(answer,))
            for number in range(TASKS)
        )
        self._run.write_evaluation(name, Evaluation(step=self._step, pass_threshold=1.0, tasks=tasks, seconds=0.1))
        failpoint("evaluation.batch_done")
        self._run.append(EvaluationDone(at=time.time(), name=name, step=self._step))

    def _stage(self, stage: Stage) -> None:
        self._run.append(StageStarted(at=time.time(), stage=stage))

    def _keep_a_grader(self) -> None:
        """One that was killed is replaced; the real one asks for its own death by the same door (`worker.parent`)."""
        if self._grader is not None and self._grader.poll() is None:
            return
        waiting = "import time\nwhile True: time.sleep(60)"
        self._grader = subprocess.Popen(
            killed_with_parent(Path(sys.executable), "-I", "-S", "-c", waiting, GRADER_MARK, str(self._run.path)),
            env=parent_environment(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _note(self, kind: Literal["slice", "resumed", "bad_load"], detail: str = "") -> None:
        line = Computed(
            at=time.time(),
            kind=kind,
            job_id=self._plan.job_id,
            attempt=self._plan.attempt,
            step=self._step,
            pid=os.getpid(),
            supervisor_pid=os.getppid(),
            detail=detail,
        )
        os.write(self._log, line.model_dump_json().encode() + b"\n")

    def _remember(self, *_: object) -> None:
        self._told_to_stop = True


def read_compute_log(path: Path) -> list[Computed]:
    if not path.exists():
        return []
    return [Computed.model_validate_json(line) for line in path.read_bytes().splitlines()]


def main() -> None:
    compute_log, *module, run_dir = sys.argv[1:]
    assert module == ["-m", "worker.training.run"], module
    Trainer(RunDirectory(Path(run_dir)), Path(compute_log)).train()


if __name__ == "__main__":
    main()
