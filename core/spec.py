"""The job spec: what was asked for, with every default resolved. Frozen; unknown fields are refused by name.

The HTTP layer parses a client's body into these types once (`app.jobs`); below that door nobody handles dicts.
Field names and meanings follow TRL's `GRPOConfig` and PEFT's `LoraConfig`, except for batch sizes: people think in
`prompts_per_step` x `num_generations` rollouts per step, and TRL's numbers are derived (`worker.training.config`).
"""

import hashlib
import json
import math
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from core.builtin_rewards.catalogue import AnyBuiltin
from core.ids import CheckpointId, FileId, JobId, RewardId, RewardVersionId
from core.numbers import ExactNumbers
from core.reward_source import RewardForm
from core.rows import FileFormat
from core.watch import MAX_WATCHED, WatchedField

DEFAULT_LEARNING_RATE = {"lora": 2e-5, "qlora": 2e-5, "full": 1e-6}
"""Adapters take larger steps than full weights: the usual choices of the GRPO recipes in the field."""


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


class Exact(Frozen, ExactNumbers):
    """With numbers that clients choose."""


class LossType(StrEnum):
    """TRL's `loss_type`: how token losses are weighed and summed."""

    GRPO = "grpo"
    DAPO = "dapo"
    DR_GRPO = "dr_grpo"
    BNPO = "bnpo"
    CISPO = "cispo"
    SAPO = "sapo"
    LUSPO = "luspo"
    VESPO = "vespo"


class DynamicSampling(Exact):
    """Silent groups give way to groups of further prompts, within a bound (DAPO). Changes the objective:
    docs/trainer.md."""

    max_extra_batches: int = Field(2, ge=1, le=16)
    """Rounds of further generation in a step, of as many groups as are silent still: `prompts_per_step` at most."""


class PromptSampling(Exact):
    """Prompts whose groups still disagree come more often. Changes the objective: docs/trainer.md."""

    floor: float = Field(0.1, gt=0, le=1)
    """Weight of a prompt that is sure to teach nothing, where one that is sure to teach something has 1."""
    window: int = Field(4, ge=1, le=64)
    """Newest groups of a prompt that its weight is taken from."""


class Hyperparameters(Exact):
    num_generations: int = Field(8, ge=2, le=64)
    """Completions per prompt: the group. One alone has nothing to be compared with."""
    prompts_per_step: int = Field(8, ge=1, le=4096)
    """Groups per optimizer step."""
    max_steps: int | None = Field(None, ge=1, le=1_000_000)
    """Optimizer steps; unset means `n_epochs` over the training rows."""
    n_epochs: float | None = Field(None, gt=0, le=1000)
    learning_rate: float | None = Field(None, gt=0, le=1)
    """Unset means the default of the adapter method."""
    beta: float = Field(0.0, ge=0, le=10)
    """Weight of the KL term against the base model; 0 keeps no reference model."""
    epsilon: float = Field(0.2, gt=0, lt=1)
    epsilon_high: float | None = Field(None, gt=0, le=100)
    """How far above 1 a ratio is clipped; with `cispo` the ratio itself is cut off here, so at least 1. Unset:
    `epsilon`, with `cispo` 5."""
    max_completion_length: int = Field(256, ge=1, le=131_072)
    """Tokens per completion, at most."""
    max_prompt_length: int | None = Field(None, ge=1, le=1_048_576)
    """Rows with longer prompts (in tokens, chat template included) are left out and counted; unset keeps all."""
    temperature: float = Field(1.0, gt=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    loss_type: LossType = LossType.DAPO
    scale_rewards: Literal["group", "batch", "none"] = "group"
    num_iterations: int = Field(1, ge=1, le=16)
    """Optimizer passes over one generation batch."""
    mask_truncated_completions: bool = False
    rollouts_per_pass: int | None = Field(None, ge=1, le=4096)
    """Rollouts per forward and backward pass (the micro-batch). Divides the rollouts of a step; unset lets the
    trainer choose by device. Changes memory and speed, not the objective."""
    max_grad_norm: float = Field(1.0, gt=0)
    weight_decay: float = Field(0.0, ge=0, le=1)
    warmup_steps: int = Field(0, ge=0)
    lr_scheduler_type: Literal["constant", "constant_with_warmup", "linear", "cosine"] = "constant"
    gradient_checkpointing: bool = False
    fast_path: bool = True
    """Leave out the passes that change no gradient: silent groups, repeated prompts, padding (docs/trainer.md). Off,
    every pass is TRL's own."""
    audit_every: int | None = Field(None, ge=0)
    """Optimizer steps between comparisons of the fast path's gradient with TRL's (`fast/grad_relative_error`); each
    costs the passes of two more steps. Unset or 0: never."""
    dynamic_sampling: DynamicSampling | None = None
    """Unset: a step is trained on the groups that it was first generated for, silent or not."""
    prompt_sampling: PromptSampling | None = None
    """Unset: every prompt once an epoch, in an order drawn by the seed."""
    use_vllm: bool = False
    """Generate with a colocated vLLM engine; needs the `vllm` extra in the trainer's environment (docs/vllm.md)."""
    vllm_native_adapter: bool = True
    """Serve a LoRA adapter beside vLLM's base where that is possible; off, it is merged into a copy of the weights."""
    vllm_memory_share: float | None = Field(None, gt=0, lt=1)
    """Of the GPU's memory, for vLLM. Unset lets the trainer plan it."""

    @property
    def rollouts_per_step(self) -> int:
        return self.prompts_per_step * self.num_generations

    @model_validator(mode="after")
    def _passes_divide_the_step(self) -> Self:
        size = self.rollouts_per_pass
        if size is not None and self.rollouts_per_step % size:
            allowed = ", ".join(str(n) for n in range(1, self.rollouts_per_step + 1) if self.rollouts_per_step % n == 0)
            raise ValueError(
                f"rollouts_per_pass must divide prompts_per_step x num_generations = {self.rollouts_per_step}; "
                f"valid values: {allowed}"
            )
        if self.max_steps is not None and self.n_epochs is not None:
            raise ValueError("give max_steps or n_epochs, not both")
        return self


class AdapterMethod(StrEnum):
    LORA = "lora"
    QLORA = "qlora"
    """LoRA over a base in 4 bits (bitsandbytes NF4); needs a CUDA device."""
    FULL = "full"
    """No adapter: every weight is trained, and the result is a whole model."""


class AdapterSpec(Exact):
    method: AdapterMethod = AdapterMethod.LORA
    r: int = Field(16, ge=1, le=512)
    alpha: int = Field(32, ge=1, le=4096)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"


class EvaluationSpec(Exact):
    """Baseline before any update, then every `every_steps`, then final: the same held-out tasks, the same grader."""

    every_steps: int | None = Field(None, ge=1)
    """Unset: baseline and final only."""
    samples_per_task: int = Field(1, ge=1, le=64)
    """Sampled answers per task beside the greedy one."""
    temperature: float | None = Field(None, gt=0, le=2)
    """Of the sampled answers; unset means the training temperature."""
    decoding: Literal["greedy", "sampled"] = "greedy"
    """Which answers the verdict is taken on. Both are reported."""
    pass_threshold: float | None = None
    """A task is passed when its reward is at least this; unset means the sum of the positive weights, each times what a
    perfect completion gets: 1, for penalties 0, for formulas their best value."""
    held_out_fraction: float = Field(0.1, gt=0, lt=1)
    """Share of the training file held out when there is no validation file; split by the seed."""


class CheckpointSpec(Exact):
    """When to save: whichever of the two comes first; also at the best evaluation so far, and at the last step."""

    every_steps: int = Field(25, ge=1)
    every_minutes: float | Literal["auto"] | None = "auto"
    """Wall clock. `auto` is sqrt(2 x cost of a save x time between preemptions), both as the worker measures and
    expects them (Young 1974); None: steps alone decide."""
    keep: int = Field(3, ge=1, le=1000)
    """How many of the newest stay; the best and those that are pinned stay beside them."""

    @field_validator("every_minutes", mode="before")
    @classmethod
    def _is_a_time(cls, value: object) -> object:
        """Before the union is tried: each of its branches would report the same mistake in words of its own."""
        is_time = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 10_080
        if is_time or value in (None, "auto"):
            return value
        raise ValueError("must be `auto`, null, or a number above 0 and at most 10080 (a week)")


class GradingSpec(Exact):
    """When grading works too badly to train on. The job is then paused at its last good step, with a checkpoint.

    Only errors count: a reward that answers None does not fail.
    """

    max_error_share: float = Field(0.2, ge=0, lt=1)
    """A step with more ungraded rollouts than this is not taken. An evaluation with more ungraded answers has no rank,
    and no verdict is taken on it."""
    bad_step_error_share: float = Field(0.05, ge=0, lt=1)
    """A step with more ungraded rollouts than this is bad, and so is one in which no rollout has a reward."""
    max_bad_steps: int = Field(5, ge=1, le=1_000_000)
    """So many bad steps running are too many."""


class RecordSpec(Exact):
    """How many rollouts stay in the ledger, to be read and scored again. Metrics count all of them."""

    rollouts_per_step: int = Field(128, ge=0, le=4096)
    """Those that could not be graded first, then whole groups, mixed before silent (`worker.records`)."""
    steps: int = Field(1000, ge=1, le=1_000_000)
    """Of the newest steps; the rollouts of older ones go."""


class StopSpec(Exact):
    """When to end before `max_steps`: a run without signal costs as much as one with it."""

    silent_share_above: float | None = Field(None, gt=0, lt=1)
    """Of all groups of the last `window` steps; unset: silence alone ends nothing."""
    window: int = Field(50, ge=5, le=10_000)
    """Optimizer steps. A run that is shorter is never ended by silence."""
    then: Literal["warn", "pause", "stop"] = "pause"
    """`pause` saves and waits for a person; `stop` takes the final evaluation and publishes what there is."""
    held_out_patience: int | None = Field(None, ge=1, le=1000)
    """So many evaluations in a row without a new best held-out reward end training; the best checkpoint stays marked.
    Needs `evaluation.every_steps`."""


class ResourcesSpec(Exact):
    """What of a worker the job takes."""

    gpus: int = Field(1, ge=1, le=64)
    """GPUs that train together, each with the whole model and a share of every step's prompts. At most what a worker
    has (`PODIUM_GPUS`). On a machine without GPUs as many processes share its cores."""


RewardName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]


class Gate(Exact):
    """A term counts only where another one reaches a value; `worker.grading.gates` says what else."""

    reward: RewardName
    """A term that stands before the gated one in the job."""
    at_least: float = 1.0


class RewardShare(Frozen):
    name: RewardName
    """Unique in the job; metrics read `rewards/<name>/mean`."""
    weight: float = Field(1.0, ge=-1000, le=1000)
    gate: Gate | None = None

    @property
    def best(self) -> float:
        """What a perfect completion gets from the term alone; rewards of people's own are taken to end at 1."""
        return 1.0


class PinnedReward(RewardShare):
    """One reward term, fixed to the version of the source that was current when the job was created."""

    source_sha256: str
    entry_point: str
    form: RewardForm
    """Guessed from the parameter names when the version was uploaded, or said by the client there or in the job."""
    reward_id: RewardId | None = None
    version_id: RewardVersionId | None = None
    """Unset for a grader whose source came inside the spec (OpenAI's python grader)."""


class BuiltinReward(RewardShare):
    """One reward term that needs no source: a built-in and its parameters, credentials apart."""

    parameters: AnyBuiltin
    credentials_sha256: str | None = None
    """Of what `http` must know and no document may show (`core.builtin_rewards.outside.Credentials`), as the job's
    inline source of this name keeps it; unset where there are none."""

    @property
    def best(self) -> float:
        return self.parameters.best

    @property
    def form(self) -> str:
        return "builtin"

    @property
    def source_sha256(self) -> str:
        """What identifies it in results: the digest of the parameters."""
        text = json.dumps(self.parameters.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def reward_id(self) -> None:
        return None

    @property
    def version_id(self) -> None:
        return None


RewardTerm = PinnedReward | BuiltinReward


class ModelSource(StrEnum):
    HUB = "hub"
    LOCAL = "local"
    """Registered by the operator in `PODIUM_MODELS`."""


class ModelRef(Frozen):
    name: str
    """As the client wrote it, without the revision."""
    source: ModelSource
    revision: str | None
    """The Hub commit (40 hex digits), pinned at admission; for a local model the digest of its weights' index."""


class DataRef(Frozen):
    file_id: FileId
    filename: str
    format: FileFormat
    sha256: str
    rows: int


class CheckpointRef(Frozen):
    """A committed checkpoint of another job, whose weights a branch begins with."""

    job_id: JobId
    checkpoint_id: CheckpointId
    step: int
    prefix: str
    """Of its objects' keys."""
    manifest_sha256: str


class JobSpec(Frozen):
    """Everything that decides what a run computes. Its digest is the run's identity in `results.json`."""

    model: ModelRef
    training: DataRef
    held_out: DataRef | None
    seed: int = Field(ge=0, lt=2**31)
    rewards: tuple[RewardTerm, ...] = Field(min_length=1, max_length=16)
    """In order: gates and formulas look at terms before their own."""
    hyperparameters: Hyperparameters
    adapter: AdapterSpec
    evaluation: EvaluationSpec
    checkpoints: CheckpointSpec = CheckpointSpec()
    grading: GradingSpec = GradingSpec()
    record: RecordSpec = RecordSpec()
    stop: StopSpec = StopSpec()
    resources: ResourcesSpec = ResourcesSpec()
    watch: tuple[WatchedField, ...] = Field((), max_length=MAX_WATCHED)
    """Counted at every step; the reward knows nothing of them."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Passed to the tokenizer's chat template, e.g. `{"enable_thinking": false}` for Qwen3."""
    suffix: str | None = None
    start_from: CheckpointRef | None = None
    """Unset: the base model, with a new adapter. Steps, optimizer and data begin anew either way."""

    @property
    def max_steps(self) -> int:
        """Resolved at admission: a stored spec always has it."""
        steps = self.hyperparameters.max_steps
        assert steps is not None
        return steps

    @property
    def learning_rate(self) -> float:
        rate = self.hyperparameters.learning_rate
        assert rate is not None
        return rate

    @property
    def pass_threshold(self) -> float:
        """Reward from which a held-out task counts as passed."""
        if self.evaluation.pass_threshold is not None:
            return self.evaluation.pass_threshold
        return math.fsum(term.weight * term.best for term in self.rewards if term.weight > 0)  # as rewards are summed
