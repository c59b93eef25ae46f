"""What the API asks of the grading worker, and what that answers: the words, and the JSON of each kind of task.

The API runs no user code. It writes a row (`core.db.grading_tasks`), sends a hint, and waits a little for the answer.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field

from core.ids import FileId, RewardVersionId
from core.reward_source import RewardForm
from core.spec import Frozen, RewardTerm


class GradingTaskKind(StrEnum):
    RUN_GRADER = "run_grader"
    """Grade one sample: `RunGrader` asks, `GraderRan` answers."""
    PROBE_REWARD = "probe_reward"
    """Try an uploaded reward on junk: `ProbeReward` asks, `core.reward_report.ProbeReport` answers."""
    PROBE_SOURCE = "probe_source"
    """The same for source that came inside a job: `ProbeSource` asks."""
    RESCORE = "rescore"
    """Grade rollouts of a job again, by another version of a reward."""

    @property
    def may_take_long(self) -> bool:
        """Most of a minute, where a grader's trial is one call."""
        return self is not GradingTaskKind.RUN_GRADER


class GradingTaskStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """Nobody will try again; `error` says why. What a reward does wrong is an answer, not a failure."""

    @property
    def is_final(self) -> bool:
        return self in {GradingTaskStatus.DONE, GradingTaskStatus.FAILED}


class RunGrader(Frozen):
    terms: tuple[RewardTerm, ...] = Field(min_length=1)
    """As a job would have them: weights, gates and formulas count."""
    sources: dict[str, str]
    """By the name of the term: source that came inside the request, credentials of an `http` reward (JSON)."""
    item: dict[str, Any]
    """A row of a data set."""
    sample: str | None
    """The completion to grade; None: only load."""
    within_s: float = 12.0
    """How long whoever asks waits for the answer."""


class TermGrade(Frozen):
    """`worker.grading.grades.Grade`, as far as it is shown."""

    outcome: str
    value: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    message: str | None = None
    traceback: str | None = None
    timed_out: bool = False
    latency_s: float = 0.0


class GraderRan(Frozen):
    reward: float | None
    """None when a term failed, or none has an answer: a failure is never a number."""
    grades: dict[str, TermGrade]
    """By the name of the term. Of a grader that was only loaded, those that could not be."""
    output: str
    """The end of what reward code printed."""


class ProbeReward(Frozen):
    version_id: RewardVersionId
    file_id: FileId | None
    """The data set whose first rows are used; None: rows are made up."""
    form: RewardForm | None = None
    entry_point: str | None = None
    """Where a job calls the source otherwise than its version says."""


class ProbeSource(Frozen):
    source: str
    source_sha256: str
    entry_point: str
    form: RewardForm
    file_id: FileId
