"""The ledger's tables. Only `core.db` reads and writes them.

Times are the database's clock (`clock_timestamp()`), never a process's.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    DateTime,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    Text,
    TypeDecorator,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from core.grading_tasks import GradingTaskKind, GradingTaskStatus
from core.ids import CheckpointId, EventId, FileId, GradingTaskId, JobId, RewardId, RewardVersionId, TenantId
from core.settings import ExportTarget
from core.status import JobKind, JobStatus, Stage, StatusReason

Json = dict[str, Any]


class Word(TypeDecorator[StrEnum]):
    """A word of one of our enums: text in the table, so that a new word needs no migration, the enum in Python."""

    impl = Text
    cache_ok = True

    def __init__(self, words: type[StrEnum]) -> None:
        super().__init__()
        self.words = words

    def process_result_value(self, value: Any | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.words(value)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy reads a plain class attribute
        str: Text,
        JobId: Text,
        FileId: Text,
        RewardId: Text,
        RewardVersionId: Text,
        EventId: Text,
        CheckpointId: Text,
        GradingTaskId: Text,
        TenantId: Text,
        JobKind: Word(JobKind),
        JobStatus: Word(JobStatus),
        Stage: Word(Stage),
        StatusReason: Word(StatusReason),
        GradingTaskKind: Word(GradingTaskKind),
        GradingTaskStatus: Word(GradingTaskStatus),
        ExportTarget: Word(ExportTarget),
        datetime: DateTime(timezone=True),
        Json: JSONB,
        list[Any]: JSONB,
        bytes: LargeBinary,
    }


def now() -> Any:
    """The database's wall clock; unlike now() it moves on inside a transaction."""
    return func.clock_timestamp()


class ApiKey(Base):
    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId]
    name: Mapped[str]
    secret_sha256: Mapped[bytes] = mapped_column(unique=True)
    """The secret has 256 random bits, so a plain digest is enough; it is shown once and never stored."""
    created_at: Mapped[datetime] = mapped_column(server_default=now())
    revoked_at: Mapped[datetime | None]


class File(Base):
    __tablename__ = "files"
    __table_args__ = (Index(None, "tenant_id", "id"),)

    id: Mapped[FileId] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId]
    filename: Mapped[str]
    purpose: Mapped[str]
    """OpenAI's word: `fine-tune` for data sets, `fine-tune-results` for what a job hands back."""
    format: Mapped[str | None]
    """Unset for result files."""
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    key: Mapped[str]
    """Object key in the store."""
    rows: Mapped[int | None]
    distinct_prompts: Mapped[int | None]
    prompt_kind: Mapped[str | None]
    """`core.rows.PromptKind`; unset for result files, and for data sets from before it was kept."""
    columns: Mapped[list[Any]] = mapped_column(server_default=text("'[]'::jsonb"))
    """Names of the columns that every row has, the prompt's own left out: what rewards may read."""
    job_id: Mapped[JobId | None]
    """The job that made a result file."""
    created_at: Mapped[datetime] = mapped_column(server_default=now())
    deleted_at: Mapped[datetime | None]


class Reward(Base):
    __tablename__ = "rewards"
    __table_args__ = (Index(None, "tenant_id", "id"),)

    id: Mapped[RewardId] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId]
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=now())


class RewardVersion(Base):
    """Immutable: a change is a new version."""

    __tablename__ = "reward_versions"
    __table_args__ = (UniqueConstraint("reward_id", "version"),)

    id: Mapped[RewardVersionId] = mapped_column(primary_key=True)
    reward_id: Mapped[RewardId] = mapped_column(ForeignKey("rewards.id"))
    version: Mapped[int]
    """1, 2, 3, ... without gaps."""
    source: Mapped[str]
    sha256: Mapped[str]
    entry: Mapped[Json]
    """`core.reward_source.RewardEntry` as JSON: name, form, columns."""
    created_at: Mapped[datetime] = mapped_column(server_default=now())


class InlineReward(Base):
    """Source of a python grader that came inside a job spec, by digest."""

    __tablename__ = "inline_rewards"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str]


class Job(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index(None, "tenant_id", "id"),
        Index("ix_jobs_due", "status", "hinted_at", postgresql_where=text("status IN ('queued', 'running')")),
        Index("ix_jobs_metadata", "metadata", postgresql_using="gin"),
    )

    id: Mapped[JobId] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId]
    kind: Mapped[JobKind] = mapped_column(server_default=text("'grpo'"))
    status: Mapped[JobStatus]
    """Changed only by `core.db.jobs.transition()`."""
    stage: Mapped[Stage | None]
    status_reason: Mapped[StatusReason | None]
    error: Mapped[Json | None]
    """`{code, message, param, fix}` of a failed job."""

    model: Mapped[str]
    suffix: Mapped[str | None]
    seed: Mapped[int]
    metadata_: Mapped[Json] = mapped_column("metadata")
    method: Mapped[Json]
    """The method as the client sent it, for the answer; `spec` is what runs."""
    integrations: Mapped[list[Any]] = mapped_column(server_default=text("'[]'::jsonb"))
    """`core.integrations.Integration` as JSON; `exports` has a row for each."""
    spec: Mapped[Json]
    """`core.spec.JobSpec` as JSON."""
    training_file: Mapped[FileId]
    validation_file: Mapped[FileId | None]
    branched_from: Mapped[CheckpointId | None]
    """The checkpoint of another job whose weights this one begins with."""

    created_at: Mapped[datetime] = mapped_column(server_default=now())
    started_at: Mapped[datetime | None]
    """When the first attempt claimed it."""
    finished_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    """A wish; the status follows when the trainer has stopped."""
    pause_requested_at: Mapped[datetime | None]
    """A wish like it, until the job is resumed."""

    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    """The fencing token: raised by every claim, never reset."""
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """The crash budget: failures since the run last made durable progress."""
    preemptions: Mapped[int] = mapped_column(server_default=text("0"))
    lease_owner: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    hinted_at: Mapped[datetime | None]
    """When a worker was last told; losing the message costs one repeat interval."""

    next_event_seq: Mapped[int] = mapped_column(server_default=text("1"))
    step: Mapped[int] = mapped_column(server_default=text("0"))
    durable_step: Mapped[int | None]
    """Step of the newest committed checkpoint: what a lost worker cannot take away."""
    activity: Mapped[Json | None]
    """What the run does right now (`core.activity.DatedActivity` as JSON), written with each renewal of the lease."""
    furthest_durable_step: Mapped[int | None]
    """The highest step that was ever durable: beyond it a checkpoint is progress."""
    trained_tokens: Mapped[int | None] = mapped_column(BigInteger)
    results_file: Mapped[FileId | None]


class SignalProbe(Base):
    """What a job of kind `signal_probe` is to do beside its spec, and what it has found."""

    __tablename__ = "signal_probes"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    prompts: Mapped[int]
    samples: Mapped[int]
    report: Mapped[Json | None] = mapped_column(deferred=True)
    """`core.signal_report.SignalReport` as JSON, once it has succeeded; large, so read where it is shown."""


class JobAttempt(Base):
    """One claim of a job by a worker."""

    __tablename__ = "job_attempts"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True)
    owner: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=now())
    ended_at: Mapped[datetime | None]
    resumed_from_step: Mapped[int | None]
    last_step: Mapped[int] = mapped_column(server_default=text("0"))
    journal_offset: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    """Bytes of the run's journal that are in the ledger."""
    resume_audit: Mapped[Json | None]
    """`worker.audit.ResumeAudit`: what was done again, against what had been recorded."""
    ended: Mapped[str | None]
    """A final status, or the status reason that sent the job back."""


class JobEvent(Base):
    __tablename__ = "job_events"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    """1, 2, 3, ... per job, without gaps, across attempts."""
    id: Mapped[EventId] = mapped_column(unique=True)
    attempt: Mapped[int]
    level: Mapped[str]
    type: Mapped[str]
    """OpenAI's `message` or `metrics`."""
    code: Mapped[str]
    message: Mapped[str]
    data: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(server_default=now())


class StepMetrics(Base):
    __tablename__ = "step_metrics"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    """A replayed step belongs to the later attempt."""
    metrics: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(server_default=now())


class RolloutRecord(Base):
    __tablename__ = "rollouts"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    index: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    rollout: Mapped[Json]
    """`worker.run_directory.Rollout` as JSON."""


class GroupsRecord(Base):
    """How the groups of a generation batch came out: of every step, and of every rollout, whatever `rollouts` keeps."""

    __tablename__ = "step_groups"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    rows: Mapped[Json]
    """Lines of the training file by `core.signal.GroupOutcome`."""


class EvaluationRecord(Base):
    __tablename__ = "evaluations"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int]
    attempt: Mapped[int]
    evaluation: Mapped[Json]
    """`core.results.Evaluation` as JSON: every task's answers."""
    created_at: Mapped[datetime] = mapped_column(server_default=now())


class Checkpoint(Base):
    """The row is the commit point: its objects were written before it."""

    __tablename__ = "checkpoints"
    __table_args__ = (UniqueConstraint("job_id", "step", "attempt"),)

    id: Mapped[CheckpointId] = mapped_column(primary_key=True)
    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"))
    step: Mapped[int]
    attempt: Mapped[int]
    prefix: Mapped[str]
    manifest_sha256: Mapped[str]
    files: Mapped[list[Any]]
    """`[{name, size_bytes, sha256}]`."""
    metrics: Mapped[Json]
    is_best: Mapped[bool]
    pinned: Mapped[bool] = mapped_column(server_default=text("false"))
    """Kept for good: a person asked for it."""
    corrupt_at: Mapped[datetime | None]
    """When a digest did not match; such a checkpoint is never resumed from."""
    collected_at: Mapped[datetime | None]
    """When retention gave it up; its objects are deleted after that."""
    created_at: Mapped[datetime] = mapped_column(server_default=now())


class Artifact(Base):
    __tablename__ = "artifacts"

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    """`adapter/adapter_model.safetensors`, `results.json`, ..."""
    attempt: Mapped[int]
    key: Mapped[str]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    content_type: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=now())


class Export(Base):
    """What a target has been told of a job is asked of the target; this row says who does it, and how it went."""

    __tablename__ = "exports"
    __table_args__ = (Index("ix_exports_due", "due_at", postgresql_where=text("finished_at IS NULL")),)

    job_id: Mapped[JobId] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    target: Mapped[ExportTarget] = mapped_column(primary_key=True)
    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    """The fencing token: raised by every claim."""
    lease_expires_at: Mapped[datetime | None]
    due_at: Mapped[datetime] = mapped_column(server_default=now())
    """Not before this: after failures, a pause."""
    started_at: Mapped[datetime | None]
    """When the target first took something."""
    failing_since: Mapped[datetime | None]
    """Unset while it works."""
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    """In a row."""
    error_code: Mapped[str | None]
    """Of the newest failure, which people have been told of; it stays when the next try succeeds."""
    finished_at: Mapped[datetime | None]
    """Everything has been sent, or it was given up."""


class GradingTask(Base):
    """Reward code to be run for the API, which waits for the answer in this row. `core.grading_tasks` has its JSON."""

    __tablename__ = "grading_tasks"
    __table_args__ = (
        Index("ix_grading_tasks_due", "hinted_at", postgresql_where=text("status IN ('queued', 'running')")),
        Index("ix_grading_tasks_finished_at", "finished_at"),
    )

    id: Mapped[GradingTaskId] = mapped_column(primary_key=True)
    tenant_id: Mapped[TenantId]
    kind: Mapped[GradingTaskKind]
    status: Mapped[GradingTaskStatus]
    request: Mapped[Json]
    answer: Mapped[Json | None]
    error: Mapped[Json | None]
    """`{code, message, param, fix}` of a failed task."""
    attempt: Mapped[int] = mapped_column(server_default=text("0"))
    """The fencing token: raised by every claim."""
    created_at: Mapped[datetime] = mapped_column(server_default=now())
    hinted_at: Mapped[datetime | None]
    """When a worker was last told."""
    lease_expires_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class RewardProbe(Base):
    """Which task has probed a version of a reward on a data set; the task's answer is the report.

    A version has as many reports as data sets that it was tried on, so a column of the version could not hold them.
    What this table names stays: the janitor leaves those tasks alone.
    """

    __tablename__ = "reward_probes"
    __table_args__ = (Index(None, "version_id", "file_id"),)

    task_id: Mapped[GradingTaskId] = mapped_column(ForeignKey("grading_tasks.id"), primary_key=True)
    version_id: Mapped[RewardVersionId] = mapped_column(ForeignKey("reward_versions.id"))
    file_id: Mapped[FileId | None] = mapped_column(ForeignKey("files.id"))
    """Unset: rows were made up."""


class IdempotencyKey(Base):
    """The first answer to a create, replayed for the same key and body."""

    __tablename__ = "idempotency_keys"

    tenant_id: Mapped[TenantId] = mapped_column(primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[str]
    """SHA-256 of method, path and body."""
    status: Mapped[int]
    body: Mapped[Json]
    created_at: Mapped[datetime] = mapped_column(server_default=now())
