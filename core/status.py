"""What a job can be, and how it may change. Pure; `core.db.jobs.transition` obeys this table."""

from collections.abc import Mapping
from enum import StrEnum


class JobStatus(StrEnum):
    """Facts about a job. Wishes (cancel, pause) are timestamps on the row, never statuses."""

    VALIDATING_FILES = "validating_files"
    """OpenAI's name for the moment before a job is queued; ours validates inside the request."""
    QUEUED = "queued"
    """Recorded, and waiting for a worker."""
    RUNNING = "running"
    """Held by one worker through a lease."""
    PAUSED = "paused"
    """Stopped on purpose with what is durable kept; `resume` queues it again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return not TRANSITIONS[self]


TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.VALIDATING_FILES: frozenset({JobStatus.QUEUED, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.PAUSED, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.RUNNING: frozenset(
        {JobStatus.QUEUED, JobStatus.PAUSED, JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}
    ),
    JobStatus.PAUSED: frozenset({JobStatus.QUEUED, JobStatus.CANCELLED}),
    JobStatus.SUCCEEDED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}
TERMINAL = tuple(status for status in JobStatus if status.is_terminal)


class JobKind(StrEnum):
    """What a row of the jobs table asks a worker to do."""

    GRPO = "grpo"
    """Train: what clients call a job."""
    SIGNAL_PROBE = "signal_probe"
    """Sample and grade what the job would begin with, and train nothing."""


class Stage(StrEnum):
    """What a running job is doing."""

    PREPARING = "preparing"
    PROBING = "probing"
    """Of a signal probe: it samples completions and grades them."""
    BASELINE = "baseline"
    TRAINING = "training"
    EVALUATING = "evaluating"
    EXPORTING = "exporting"


class StatusReason(StrEnum):
    """Why a job is where it is, for machines."""

    PREEMPTED = "preempted"
    """Its worker was told to go; the job waits for the next one."""
    WORKER_LOST = "worker_lost"
    """Its lease expired: the worker died or was cut off."""
    USER_CANCELLED = "user_cancelled"
    USER_PAUSED = "user_paused"
    DISK_FULL = "disk_full"
    """The worker's disk or the store has no room; the job waits until somebody makes some, and resumes it."""
    TRAINER_CRASHED = "trainer_crashed"
    """The trainer process ended without saying why."""
    TRAINER_HUNG = "trainer_hung"
    """A phase of the trainer took far longer than it ever had; the watchdog ended it."""
    OUT_OF_MEMORY = "out_of_memory"
    GRADER_FAILED = "grader_failed"
    """The reward could not be loaded, or failed too often to train on."""
    SIGNAL_STARVED = "signal_starved"
    """All rewards of nearly all groups were equal for as long as the job allows; a person has to say what now."""
    SAMPLER_FAILED = "sampler_failed"
    """The engine that samples died, or served other weights than those that are trained."""
    MODEL_UNUSABLE = "model_unusable"
    """The weights, tokenizer or chat template cannot be used for this job, or are not where they were."""
    HUB_FAILED = "hub_failed"
    """The model hub did not answer; the job is tried again."""
    DATA_UNUSABLE = "data_unusable"
    STORE_FAILED = "store_failed"
    """The object store refused what had to be made durable, or stayed away for too long."""
    WORKER_UNFIT = "worker_unfit"
    """This worker cannot run the job: no interpreter, a trainer of another version."""
    INVALID_SPEC = "invalid_spec"
    """A setting that only the trainer could refuse."""
