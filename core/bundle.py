"""`bundle.json`: what a job was, complete enough to run it again and to say which figures differ.

It stands first in the archive that `GET /v1/fine_tuning/jobs/{id}/bundle` answers, and names every other member with
its digest. Credentials are in none of them: where a reward needs some, their digest alone is here.
"""

from typing import Final, Literal

from core.ids import JobId
from core.results import ArtifactFacts, Environment, ResumeAuditFacts
from core.rows import FileFormat
from core.spec import Frozen, JobSpec
from core.status import JobStatus, StatusReason

SCHEMA_VERSION: Final = 1
BUNDLE: Final = "bundle.json"
RESULTS: Final = "results.json"
METRICS: Final = "metrics.jsonl"
"""A line for each step: `{"step", "attempt", "metrics"}`."""
EVENTS: Final = "events.jsonl"
EVALUATIONS: Final = "evaluations/"
"""Of each held-out evaluation one `<name>.json`: `core.results.Evaluation`."""


class BundledJob(Frozen):
    id: JobId
    status: JobStatus
    status_reason: StatusReason | None
    created_at: int
    started_at: int | None
    finished_at: int | None
    step: int
    """The last one that counts; metrics end here."""
    metadata: dict[str, str]


class BundledData(Frozen):
    member: str | None
    """Where the rows are in the archive; null: it was asked for without, or the file has been deleted since."""
    filename: str
    format: FileFormat
    sha256: str
    rows: int


class BundledReward(Frozen):
    """A term of the spec, by its name there."""

    name: str
    form: str
    source_sha256: str
    """Of the source; of a built-in, of its parameters."""
    member: str | None
    """Where the source is in the archive; null for built-in rewards."""
    credentials_sha256: str | None
    """Of what an `http` reward has to know; whoever runs the job again must have it."""


class BundledAttempt(Frozen):
    attempt: int
    started_at: int
    ended_at: int | None
    resumed_from_step: int | None
    last_step: int
    ended: str | None
    """A final status, or the reason that sent the job back; null while it runs."""
    resume_audit: ResumeAuditFacts | None


class Bundle(Frozen):
    schema_version: Literal[1] = SCHEMA_VERSION
    podium: str
    """Version of the server that made the bundle."""
    job: BundledJob
    spec: JobSpec
    """With every default resolved; the model and its revision, and the seed, are in it."""
    spec_sha256: str
    """Of its canonical JSON."""
    start_model: str | None
    """As a job's `model`: the checkpoint that it began with, which the bundle does not hold; null for a base model."""
    training: BundledData
    held_out: BundledData | None
    rewards: tuple[BundledReward, ...]
    environment: Environment | None
    """In which it ran, as `results.json` has it; null for a job without results."""
    adapter_sha256: str | None
    attempts: tuple[BundledAttempt, ...]
    members: tuple[ArtifactFacts, ...]
    """Every other file of the archive, in its order."""
