"""`results.json`: the document that a sceptic reads.

Its JSON Schema is published: `python -m core.results > docs/results.schema.json` writes it again.
"""

import json
import sys
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from core.taught import Taught

SCHEMA_VERSION: Final = 1
SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

Decoding = Literal["greedy", "sampled"]


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Answer(Frozen):
    """One completion for one held-out task, and its grade."""

    completion: str
    reward: float | None
    """Null when the grader failed or had no answer: such a task is an error, not a failure."""
    passed: bool | None
    completion_tokens: int
    finish_reason: Literal["stop", "length"]
    error: str | None = None
    """What went wrong when the grader failed; null where it had no answer."""


class TaskResult(Frozen):
    task: int
    """Line of the held-out file."""
    prompt_sha256: str
    """Of the canonical prompt: the same task in every evaluation that is compared."""
    greedy: Answer
    sampled: tuple[Answer, ...]

    def answers(self, decoding: Decoding) -> tuple[Answer, ...]:
        return (self.greedy,) if decoding == "greedy" else self.sampled


class Evaluation(Frozen):
    """Every held-out task answered by one policy."""

    step: int
    """Optimizer steps taken; 0 is the baseline."""
    pass_threshold: float
    tasks: tuple[TaskResult, ...]
    seconds: float

    def answers(self, decoding: Decoding) -> list[Answer]:
        """Those that evaluations are ranked by, and the verdict is taken on."""
        return [answer for task in self.tasks for answer in task.answers(decoding)]

    def is_reliable(self, decoding: Decoding, max_error_share: float) -> bool:
        """Whether few enough answers met an error (`GradingSpec.max_error_share`) to rank it or to judge by it."""
        answers = self.answers(decoding)
        return sum(answer.error is not None for answer in answers) <= max_error_share * len(answers)


class Score(Frozen):
    """How one policy did on the held-out tasks under one decoding."""

    n: int
    """Answers that could be graded."""
    passed: int
    errors: int
    """Answers without a grade: in neither `n` nor `passed`."""
    pass_rate: float | None
    pass_rate_ci95: tuple[float, float] | None
    """Wilson interval; over tasks, with the first answer of each where several were sampled. Equal prompts are one."""
    mean_reward: float | None
    """Over tasks, of each one's mean over its answers with a grade."""
    mean_reward_ci95: tuple[float, float] | None = None
    """Normal interval; rows with the same prompt count as one task. Null for fewer than ten tasks, where all rewards
    are equal, and in older documents. Whether two policies differ is the verdict's matter, which pairs their tasks."""
    truncated: int
    """Answers cut at max_completion_length."""
    pass_at: dict[int, float] = Field(default_factory=dict)
    """Share of tasks that at least one of k samples passes, for k = 1, 2, 4, ... (Chen et al. 2021); empty where a task
    has one sample. `pass_at[1]` is the mean over samples."""


class EvaluationScore(Frozen):
    name: str
    step: int
    greedy: Score
    sampled: Score
    ungraded_tasks: tuple[int, ...] = ()
    """Lines of the held-out file with an answer that has no grade: left out of every mean and rate."""


class Verdict(Frozen):
    """Baseline against final on the same held-out tasks, paired."""

    decoding: Decoding
    outcome: Literal["improved", "worse", "no_significant_change", "not_comparable"]
    sentence: str
    """The verdict in one plain sentence, with the reason when it did not learn."""
    tasks: int
    """Tasks graded in both evaluations. Rows with the same prompt are one, passed when more than half of them did."""
    fixed: int
    """Failed before, passed after."""
    broken: int
    """Passed before, failed after."""
    same: int
    p_value: float | None
    """Exact two-sided McNemar test."""
    change_points: float | None
    """Percentage points of pass rate."""
    mean_reward_change: float | None
    mean_reward_change_ci95: tuple[float, float] | None
    """Paired bootstrap, 10,000 resamples of the tasks, seeded."""
    smallest_significant_fixed: int | None
    """Fixed tasks that would be needed for p < 0.05 if nothing broke: what this many tasks could show."""


class PhaseSeconds(Frozen):
    """Wall seconds of the trainer process by phase; they sum to `total`."""

    load: float = 0.0
    generation: float = 0.0
    weight_sync: float = 0.0
    reward: float = 0.0
    logprobs_no_grad: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    optimizer: float = 0.0
    evaluation: float = 0.0
    checkpoint: float = 0.0
    export: float = 0.0
    rest: float = 0.0
    total: float = 0.0


class Environment(Frozen):
    python: str
    platform: str
    device: str
    """`cpu`, or the name of the GPU."""
    driver: str | None
    dtype: str
    libraries: dict[str, str]
    """Version by distribution: torch, transformers, trl, peft, ..."""


class JobFacts(Frozen):
    id: str
    created_at: int
    started_at: int
    finished_at: int
    suffix: str | None
    metadata: dict[str, str]


class ModelFacts(Frozen):
    base: str
    revision: str | None
    method: Literal["lora", "qlora", "full"]
    adapter_sha256: str
    """Of adapter_model.safetensors (of all weight shards in order, for a whole model)."""


class DataFacts(Frozen):
    training_file: str
    training_sha256: str
    training_rows: int
    held_out_file: str | None
    held_out_sha256: str | None
    held_out_rows: int
    overlap_rows: int


class RewardFacts(Frozen):
    name: str
    weight: float
    form: str
    source_sha256: str
    reward_id: str | None
    version_id: str | None


class Parameters(Frozen):
    spec: dict[str, Any]
    """The job spec with every default resolved."""
    trainer: dict[str, Any]
    """TRL's and PEFT's numbers derived from it."""
    sha256: str
    """Of the canonical JSON of both."""


class FindingFacts(Frozen):
    """What a rule over the run's own numbers has found."""

    code: str
    subject: str | None = None
    """The watched field that it is about, where it is about one."""
    severity: Literal["error", "warning", "info"]
    sentence: str
    fix: str
    try_next: str
    since_step: int | None
    """Where it begins to show; null for what holds for the run as a whole."""
    evidence: dict[str, float | int | None]


class Diagnostics(Frozen):
    silent_share: float | None
    steps_without_gradient: int
    truncated_share: float | None
    ungraded_rollouts: int
    left_out_rollouts: int = 0
    """Rollouts that dynamic sampling generated and graded, and did not train on."""
    ended_early: str | None = None
    """By which rule of the job training ended before its last step; null: it did not."""
    findings: tuple[FindingFacts, ...] = ()
    """Why it did not learn, or what went wrong while it did; the gravest first."""
    taught: Taught | None = None
    """Which prompts could teach, and the share of the bill that bought no gradient; null in older documents."""


class Tokens(Frozen):
    generated: int
    left_out: int = 0
    """Of those generated: in rollouts that dynamic sampling did not train on."""
    trained: int


class Cost(Frozen):
    gpu_seconds: float
    """Wall seconds that an attempt held the worker, times its GPUs, all attempts together."""
    usd_per_hour: float
    """Of one GPU."""
    usd: float
    redone_steps: int
    """Steps that were trained again because they were not durable when an attempt ended."""


class ResumeAuditFacts(Frozen):
    """Steps that the attempt did again, compared with what an earlier one had recorded of them."""

    steps_compared: int
    steps_equal: int
    exact: bool
    """Whether every number of every compared step was equal to the last bit."""


class AttemptFacts(Frozen):
    attempt: int
    started_at: int
    ended_at: int
    resumed_from_step: int | None
    last_step: int
    ended: str
    """`succeeded`, or the status reason: `preempted`, `worker_lost`, ..."""
    resume_audit: ResumeAuditFacts | None
    """Null for the first attempt, and for one that ended before it could be told."""


class ArtifactFacts(Frozen):
    name: str
    size_bytes: int
    sha256: str


class JobResults(Frozen):
    """Written last: if it exists, everything that it names exists."""

    schema_version: Literal[1] = SCHEMA_VERSION
    job: JobFacts
    model: ModelFacts
    data: DataFacts
    rewards: tuple[RewardFacts, ...]
    seed: int
    parameters: Parameters
    baseline: EvaluationScore
    final: EvaluationScore
    best: EvaluationScore
    """Best by held-out reward; chosen among all evaluations, so its score flatters: the verdict uses `final`."""
    evaluations: tuple[EvaluationScore, ...]
    verdict: Verdict
    diagnostics: Diagnostics
    time: PhaseSeconds
    tokens: Tokens
    cost: Cost
    attempts: tuple[AttemptFacts, ...]
    preemptions: int
    environment: Environment
    artifacts: tuple[ArtifactFacts, ...] = Field(min_length=1)


def json_schema() -> str:
    """The published schema of `JobResults`, as text."""
    schema = {"$schema": SCHEMA_DIALECT} | JobResults.model_json_schema(mode="serialization")
    return json.dumps(schema, indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(json_schema())
