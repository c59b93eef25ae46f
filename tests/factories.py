"""Specs, jobs and leases with sensible defaults; a test names only what it is about."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from core.db import events, jobs, leases, signal_probes
from core.db.leases import Lease
from core.db.models import Job, JobEvent, now
from core.db.session import Sessions
from core.ids import FileId, JobId, TenantId, new_file_id, new_job_id, new_signal_probe_id
from core.integrations import Integration
from core.reward_source import RewardForm
from core.rows import FileFormat
from core.signal_report import ProbeSize
from core.spec import (
    AdapterSpec,
    CheckpointSpec,
    DataRef,
    EvaluationSpec,
    Hyperparameters,
    JobSpec,
    ModelRef,
    ModelSource,
    PinnedReward,
)
from core.status import JobStatus

TENANT = TenantId("tenant-a")
PROBE_SIZE = ProbeSize(prompts=16, samples=4)
REWARD_SOURCE = "def reward(completion, answer):\n    return float(completion == answer)\n"


def make_data_ref(content: bytes = b'{"prompt": "2+2", "answer": "4"}\n', file_id: FileId | None = None) -> DataRef:
    return DataRef(
        file_id=file_id or new_file_id(),
        filename="train.jsonl",
        format=FileFormat.JSONL,
        sha256=hashlib.sha256(content).hexdigest(),
        rows=content.count(b"\n"),
    )


def make_reward(name: str = "exact", source: str = REWARD_SOURCE, **changes: Any) -> PinnedReward:
    """A reward whose source is kept with the job itself (see `add_job`)."""
    facts: dict[str, Any] = {
        "name": name,
        "source_sha256": hashlib.sha256(source.encode()).hexdigest(),
        "entry_point": "reward",
        "form": RewardForm.PER_SAMPLE,
    }
    return PinnedReward(**(facts | changes))


def make_spec(**changes: Any) -> JobSpec:
    facts: dict[str, Any] = {
        "model": ModelRef(name="podium/tiny", source=ModelSource.LOCAL, revision=None),
        "training": make_data_ref(),
        "held_out": make_data_ref(),
        "seed": 42,
        "rewards": (make_reward(),),
        "hyperparameters": Hyperparameters(max_steps=4, learning_rate=1e-3, num_generations=2, prompts_per_step=2),
        "adapter": AdapterSpec(),
        "evaluation": EvaluationSpec(),
        "checkpoints": CheckpointSpec(every_steps=2),
    }
    return JobSpec(**(facts | changes))


def add_job(
    session: Session,
    *,
    spec: JobSpec | None = None,
    tenant_id: TenantId = TENANT,
    job_id: JobId | None = None,
    sources: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    integrations: Sequence[Mapping[str, Any]] = (),
) -> Job:
    """A queued job; `sources` are those of the rewards that came inside the spec."""
    spec = spec or make_spec()
    return jobs.add(
        session,
        job_id or new_job_id(),
        tenant_id=tenant_id,
        spec=spec,
        model=spec.model.name,
        method={"type": "grpo"},
        metadata=metadata or {},
        inline_sources={term.name: REWARD_SOURCE for term in spec.rewards} if sources is None else sources,
        integrations=[Integration.model_validate(item) for item in integrations],
    )


def queued_job(sessions: Sessions, **changes: Any) -> JobId:
    with sessions.begin() as session:
        return add_job(session, **changes).id


def queued_probe(sessions: Sessions, **changes: Any) -> JobId:
    """A signal probe, as the API adds it."""
    spec = make_spec()
    facts = {"tenant_id": TENANT, "spec": spec, "size": PROBE_SIZE, "method": {"type": "grpo"}, "metadata": {}}
    facts["inline_sources"] = {term.name: REWARD_SOURCE for term in spec.rewards}
    with sessions.begin() as session:
        job, _ = signal_probes.add(session, new_signal_probe_id(), **(facts | changes))
    return job.id


def claim(
    sessions: Sessions,
    job_id: JobId,
    *,
    owner: str = "worker-1",
    ttl_s: float = 60,
    max_failures: int = 3,
    gpus: int = 1,
) -> Lease | None:
    with sessions.begin() as session:
        return leases.claim(session, job_id, owner=owner, ttl_s=ttl_s, max_failures=max_failures, gpus=gpus)


def claimed(sessions: Sessions, job_id: JobId | None = None, **changes: Any) -> Lease:
    """A lease that stands: of the job, or of a new one."""
    lease = claim(sessions, job_id or queued_job(sessions), **changes)
    assert lease is not None
    return lease


def expire(sessions: Sessions, job_id: JobId) -> None:
    """Let the job's lease run out a second ago, by the database's clock."""
    with sessions.begin() as session:
        session.execute(update(Job).where(Job.id == job_id).values(lease_expires_at=now() - timedelta(seconds=1)))


def put_into(sessions: Sessions, status: JobStatus) -> JobId:
    """A job with this status, brought there as far as possible by the ledger's own doors."""
    job_id = queued_job(sessions)
    if status is JobStatus.VALIDATING_FILES:
        with sessions.begin() as session:  # no door leads there: jobs are validated before they are recorded
            session.execute(update(Job).where(Job.id == job_id).values(status=status))
    elif status is not JobStatus.QUEUED:
        lease = claimed(sessions, job_id)
        if status is not JobStatus.RUNNING:
            with sessions.begin() as session:
                leases.finish(session, lease, status, message=f"Now {status}.")
    return job_id


def read_job(sessions: Sessions, job_id: JobId) -> Job:
    with sessions() as session:
        job = jobs.get(session, job_id)
        assert job is not None
        return job


def read_events(sessions: Sessions, job_id: JobId) -> list[JobEvent]:
    with sessions() as session:
        return list(events.oldest_first(session, job_id, after_seq=0, limit=10_000))


def event_codes(sessions: Sessions, job_id: JobId) -> list[str]:
    """The codes in order; that `seq` has no gap is asked of every job that a test looks at."""
    found = read_events(sessions, job_id)
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    return [event.code for event in found]
