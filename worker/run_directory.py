"""The folder through which a supervisor and its trainer speak: the file names and line formats both agree on.

    spec.json                  in   what to run (`RunPlan`)
    data/ rewards/             in   the data sets and the reward sources
    resume/                    in   the checkpoint to go on from, if any
    start/                     in   the weights of another job's checkpoint to begin with, if any
    evaluations/baseline.json  in   the baseline of an earlier attempt, if any: reused, never graded again
    evaluations/step-N.json    in   likewise the evaluation of the checkpoint in resume/
    upload.json                in   the longest of the last uploads of a checkpoint (seconds), replaced as it is learned
    pulse.json                 out  what the trainer does at this moment (`Pulse`), replaced at each change
    journal.jsonl              out  what happened, one entry a line, in order (`JournalEntry`)
    checkpoints/step-N/        out  appear whole, by rename
    evaluations/NAME.json      out  every task's answers and rewards (`Evaluation`)
    adapter/                   out  the PEFT adapter (or the whole model)
    outcome.json               out  written last: how the run ended (`Outcome`)
    trainer.log                out  standard output and error of the trainer

The trainer knows nothing else of the world: no database, queue or bucket.
"""

import json
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from core.errors import ServiceError
from core.results import Environment, Evaluation, PhaseSeconds
from core.signal_report import ProbeSize, SignalReport
from core.spec import JobSpec
from core.status import Stage, StatusReason
from worker.files import punch_hole, write_atomically

STOPPED_EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: the trainer stopped because it was told to; what is not saved is done again."""
LAST_UPLOAD_S = 5.0
"""What a machine that goes away still grants to the last checkpoint's upload, once the trainer has ended."""
STACKS_SIGNAL = signal.SIGUSR1
"""A trainer answers it with the stacks of all its threads, in its log."""
FAILED_EXIT_CODE = 70
"""EX_SOFTWARE: the run failed, and outcome.json says why."""


class Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    at: float
    """Unix seconds, the trainer's clock."""


class StageStarted(Entry):
    kind: Literal["stage"] = "stage"
    stage: Stage


class StepDone(Entry):
    """The numbers of one optimizer step, under TRL's own names."""

    kind: Literal["step"] = "step"
    step: int
    metrics: dict[str, float | None]
    """A value that is not finite is null: JSON and Postgres know no NaN."""


class RolloutGrade(BaseModel):
    """One reward's word on one rollout: its line in the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    outcome: Literal["scored", "no_answer", "user_error", "infrastructure_error"]
    value: float | None
    error: str | None = None
    """What went wrong, in one line."""
    traceback: str | None = None
    """The frames in the reward's own source, or the end of what its process wrote."""
    timed_out: bool = False
    latency_s: float | None = None


class Rollout(BaseModel):
    """One completion of one prompt at one step, and what every reward said of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    index: int
    """Position in the step's generation batch: rollouts of one group stand together."""
    row: int
    """Line of the training file that the prompt came from."""
    prompt: str
    completion: str
    grades: dict[str, RolloutGrade]
    reward: float | None
    """The weighted sum; null when any term failed, never 0 for that."""
    advantage: float | None
    completion_tokens: int
    finish_reason: Literal["stop", "length"]
    extra: dict[str, str | int | float | bool | None] = Field(default_factory=dict)
    """Columns that rewards logged of it (TRL's `log_extra`)."""


class RolloutsDone(Entry):
    kind: Literal["rollouts"] = "rollouts"
    step: int
    """The optimizer step these rollouts are used in (the first, where they serve several)."""
    rollouts: tuple[Rollout, ...]


class EvaluationDone(Entry):
    kind: Literal["evaluation"] = "evaluation"
    name: str
    """`baseline`, `step-50`, `final`: the stem of the file in evaluations/."""
    step: int


class CheckpointSaved(Entry):
    kind: Literal["checkpoint"] = "checkpoint"
    step: int
    metrics: dict[str, float | None]
    is_best: bool
    """Whether it belongs to the best held-out evaluation so far."""
    save_s: float = 0.0
    """What the trainer waited for it."""


class CheckpointScored(Entry):
    """A checkpoint that was saved before the evaluation of its policy: what that has found."""

    kind: Literal["checkpoint_scored"] = "checkpoint_scored"
    step: int
    metrics: dict[str, float | None]
    is_best: bool


class Notice(Entry):
    """Something a person should read in the job's event log."""

    kind: Literal["notice"] = "notice"
    level: Literal["info", "warn", "error"] = "info"
    code: str
    message: str
    data: dict[str, Any] = Field(default_factory=dict)


JournalEntry = Annotated[
    StageStarted | StepDone | RolloutsDone | EvaluationDone | CheckpointSaved | CheckpointScored | Notice,
    Field(discriminator="kind"),
]
_ENTRY: TypeAdapter[JournalEntry] = TypeAdapter(JournalEntry)


class RunPlan(BaseModel):
    """All that a trainer must know, in one file."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    job_id: str
    attempt: int
    spec: JobSpec
    model_path: Path | None
    """Folder of an operator's model; unset means the Hub, at `spec.model.revision`."""
    probe: ProbeSize | None = None
    """Only sample and grade so much, and train nothing."""
    resume_step: int | None = None
    """Step of the checkpoint in resume/; unset means a run from the start."""
    stop_grace_s: float = 25.0
    """What SIGTERM grants before the trainer is killed."""
    mean_time_between_preemptions_s: float = 4 * 3600.0
    save_cost_s: float = 0.0
    """What an earlier attempt's newest save took; 0 if there was none."""


class Pulse(BaseModel):
    """A sign of life: which phase the trainer is in, and since when."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    phase: str
    since: float
    """Seconds of CLOCK_MONOTONIC, which all processes of a machine share (clock_gettime(2))."""
    longest_s: float | None = None
    """The longest that this phase has taken in this process; null until it has ended once."""
    step: int = 0
    """Optimizer steps that are done."""


class FailureDetail(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    reason: StatusReason
    code: str
    message: str
    fix: str | None = None
    retryable: bool = False
    """Whether another attempt could go better: a full GPU yes, a reward that cannot be loaded no."""
    pauses: bool = False
    """Whether somebody can mend it, and the run can then go on from its newest checkpoint: a full disk, a reward that
    began to fail. The job waits as paused instead of ending; one that is retryable, too, once its tries are used up."""


class Summary(BaseModel):
    """What a finished run knows about itself; with the ledger's part it becomes `results.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    final_step: int
    ended_early: str | None = None
    """By which rule of the job training ended before its last step."""
    best_evaluation: str
    """Name of the best held-out evaluation: may be `baseline`."""
    phases: PhaseSeconds
    environment: Environment
    trained_tokens: int
    """Prompt and completion tokens that went through the trainer's forward passes."""
    generated_tokens: int
    train_rows: int
    held_out_rows: int
    overlap_rows: int
    """Held-out rows whose prompt also stands in the training rows."""
    silent_share: float | None
    """Share of groups over the run whose rewards were all equal; null when no step was trained."""
    steps_without_gradient: int
    truncated_share: float | None
    ungraded_rollouts: int
    """Rollouts that no reward could be given for: left out, never scored 0."""
    left_out_rollouts: int = 0
    """Rollouts that dynamic sampling generated and graded, and did not train on."""
    left_out_tokens: int = 0
    """Their part of `generated_tokens`."""
    resolved_parameters: dict[str, Any]
    """TRL's and PEFT's own numbers, as derived from the spec."""


class Outcome(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["finished", "stopped", "failed"]
    step: int
    failure: FailureDetail | None = None
    summary: Summary | None = None
    report: SignalReport | None = None
    """Of a signal probe, in place of a summary."""

    @model_validator(mode="after")
    def _says_what_it_must(self) -> Self:
        if self.kind == "finished" and self.summary is None and self.report is None:
            raise ValueError("a finished run has a summary, or a signal probe's report")
        if self.kind == "failed" and self.failure is None:
            raise ValueError("a failed run says why")
        return self


class RunUnreadable(ServiceError):
    """A file of the run does not say what this version of the code expects."""

    code = "run_unreadable"
    type = "server_error"
    retryable = True
    default_fix = "Install the worker's version of Podium in the trainer's environment (PODIUM_TRAINER_PYTHON)."


@dataclass(frozen=True, slots=True)
class RunDirectory:
    path: Path

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def training_file(self) -> Path:
        return self.data / "training"

    @property
    def held_out_file(self) -> Path:
        return self.data / "held_out"

    @property
    def resume(self) -> Path:
        return self.path / "resume"

    @property
    def start(self) -> Path:
        return self.path / "start"

    @property
    def journal(self) -> Path:
        return self.path / "journal.jsonl"

    @property
    def upload(self) -> Path:
        return self.path / "upload.json"

    @property
    def adapter(self) -> Path:
        return self.path / "adapter"

    @property
    def log(self) -> Path:
        return self.path / "trainer.log"

    def reward_source(self, name: str) -> Path:
        return self.path / "rewards" / f"{name}.py"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step-{step}"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def evaluation(self, name: str) -> Path:
        return self.path / "evaluations" / f"{name}.json"

    def create(self, plan: RunPlan) -> None:
        """Lay out the folders and write the plan; the other inputs are put in place before this."""
        for name in ("data", "rewards", "checkpoints", "evaluations"):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / "spec.json", plan.model_dump_json(indent=1))

    def read_plan(self) -> RunPlan:
        return _read(self.path / "spec.json", _PLAN)

    def write_evaluation(self, name: str, evaluation: Evaluation) -> None:
        write_atomically(self.evaluation(name), evaluation.model_dump_json())

    def read_evaluation(self, name: str) -> Evaluation | None:
        path = self.evaluation(name)
        return _read(path, _EVALUATION) if path.exists() else None

    def append(self, entry: JournalEntry) -> None:
        """Add one line; a reader sees all of it or waits for the rest.

        One write(2): a signal handler that adds a line of its own cannot come between two halves of another.
        """
        line = entry.model_dump_json() + "\n"
        with self.journal.open("ab", buffering=0) as file:
            file.write(line.encode())

    def read_journal(self, offset: int = 0) -> Iterator[tuple[JournalEntry, int]]:
        """The whole lines from byte `offset` on, each with the offset behind it. Raises `RunUnreadable`."""
        if not self.journal.exists():
            return
        with self.journal.open("rb") as file:
            file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                offset += len(line)
                yield _parse(_ENTRY, line, self.journal), offset

    def release_journal(self, offset: int) -> None:
        """Give the disk back what stands before byte `offset`: a run of days would fill it with rollouts."""
        punch_hole(self.journal, offset)

    def write_upload_s(self, longest_s: float) -> None:
        write_atomically(self.upload, json.dumps(longest_s))

    def read_upload_s(self) -> float | None:
        """None before the first."""
        return _read(self.upload, _SECONDS) if self.upload.exists() else None

    def write_pulse(self, pulse: Pulse) -> None:
        """Not synced: it speaks of this moment only."""
        draft = self.path / ".pulse"
        draft.write_text(pulse.model_dump_json())
        draft.rename(self.path / "pulse.json")

    def read_pulse(self) -> Pulse | None:
        """The newest; None before the first."""
        try:
            return _read(self.path / "pulse.json", _PULSE)
        except FileNotFoundError:
            return None

    def write_outcome(self, outcome: Outcome) -> None:
        write_atomically(self.path / "outcome.json", outcome.model_dump_json(indent=1))

    def read_outcome(self) -> Outcome | None:
        path = self.path / "outcome.json"
        return _read(path, _OUTCOME) if path.exists() else None

    def clear(self) -> None:
        """Remove what is heavy once the run is over; plan, log and outcome stay for whoever asks why."""
        for file in (self.journal, self.upload):
            file.unlink(missing_ok=True)
        for folder in self.path.glob("*/"):
            shutil.rmtree(folder, ignore_errors=True)


_T = TypeVar("_T")
_PLAN = TypeAdapter(RunPlan)
_OUTCOME = TypeAdapter(Outcome)
_EVALUATION = TypeAdapter(Evaluation)
_PULSE = TypeAdapter(Pulse)
_SECONDS = TypeAdapter(float)


def _read(path: Path, adapter: TypeAdapter[_T]) -> _T:
    return _parse(adapter, path.read_bytes(), path)


def _parse(adapter: TypeAdapter[_T], data: bytes, path: Path) -> _T:
    try:
        return adapter.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise RunUnreadable(f"{path.name} of the run cannot be read: {field}: {first['msg']}") from error
