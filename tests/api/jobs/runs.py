"""What a worker writes for a job, through the ledger's own functions and under a real lease."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from core import keys
from core.db import checkpoints, events, files, leases, progress
from core.db.leases import Lease
from core.db.models import File
from core.db.session import Sessions
from core.ids import JobId, new_file_id
from core.results import Evaluation
from core.status import JobStatus, Stage, StatusReason
from core.storage.store import ObjectStore

ADAPTER = {"adapter_config.json": b'{"r": 16}', "adapter_model.safetensors": bytes(range(256)) * 9}


@dataclass(frozen=True, slots=True)
class Run:
    sessions: Sessions
    store: ObjectStore
    lease: Lease

    @classmethod
    def claim(cls, sessions: Sessions, store: ObjectStore, job_id: str, *, gpus: int = 1) -> "Run":
        with sessions.begin() as session:
            lease = leases.claim(session, JobId(job_id), owner="test", ttl_s=60, max_failures=3, gpus=gpus)
        assert lease is not None
        return cls(sessions, store, lease)

    @property
    def job_id(self) -> JobId:
        return self.lease.job_id

    @property
    def path(self) -> str:
        return f"/v1/fine_tuning/jobs/{self.job_id}"

    def again(self) -> "Run":
        """The next attempt, after this worker was told to go."""
        with self.sessions.begin() as session:
            leases.release(session, self.lease, reason=StatusReason.PREEMPTED, message="Told to go.")
        return self.claim(self.sessions, self.store, self.job_id)

    def resume_from(self, step: int) -> None:
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            progress.set_resumed_from(session, self.lease, step)

    def enter(self, stage: Stage) -> None:
        with self.sessions.begin() as session:
            progress.set_stage(session, self.lease, stage)

    def step(self, step: int, **metrics: float | None) -> None:
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            progress.add_step(session, self.lease, step, metrics)

    def evaluate(self, name: str, evaluation: Evaluation) -> None:
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            data = evaluation.model_dump(mode="json")
            progress.add_evaluation(session, self.lease, name, evaluation.step, data)

    def rollouts(self, step: int, count: int) -> None:
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            progress.add_rollouts(session, self.lease, step, [rollout(index) for index in range(count)])

    def note(self, code: str, message: str) -> None:
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            events.add(session, self.job_id, code=code, message=message)

    def checkpoint(self, step: int, contents: dict[str, bytes], *, is_best: bool = False) -> None:
        prefix = keys.checkpoint(self.job_id, step, self.lease.attempt)
        described = [
            {"name": name, "size_bytes": len(data), "sha256": self.store.put_bytes(prefix + name, data)}
            for name, data in contents.items()
        ]
        digest = self.store.put_bytes(keys.manifest(prefix), json.dumps(described).encode())
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            checkpoints.add(
                session,
                self.lease,
                step=step,
                prefix=prefix,
                manifest_sha256=digest,
                files=described,
                metrics={"reward": 0.5},
                is_best=is_best,
            )

    def artifact(self, name: str, data: bytes, content_type: str = "application/octet-stream") -> str:
        """Returns the object's key."""
        key = keys.artifact(self.job_id, self.lease.attempt, name)
        digest = self.store.put_bytes(key, data, content_type=content_type)
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            progress.show_artifact(
                session,
                self.job_id,
                attempt=self.lease.attempt,
                name=name,
                key=key,
                size_bytes=len(data),
                sha256=digest,
                content_type=content_type,
            )
        return key

    def pause(self) -> None:
        """As the supervisor does once its trainer has saved."""
        with self.sessions.begin() as session:
            leases.pause(session, self.lease, reason=StatusReason.USER_PAUSED, message="Step 1 is safe.", data={})

    def corrupt(self, step: int) -> None:
        with self.sessions.begin() as session:
            leases.hold(session, self.lease)
            found = checkpoints.at_step(session, self.job_id, step)
            assert found is not None
            checkpoints.mark_corrupt(session, self.lease, found.id)

    def collect(self, *, keep: int) -> None:
        with self.sessions.begin() as session:
            checkpoints.collect_superseded(session, self.job_id, keep=keep)

    def succeed(self, results: bytes = b'{"schema_version": 1}') -> None:
        """As the worker's publisher does: the adapter, then results.json, then the row."""
        for name, data in ADAPTER.items():
            self.artifact(f"adapter/{name}", data)
        key = self.artifact("results.json", results, "application/json")
        file = File(
            id=new_file_id(),
            tenant_id=self.lease.tenant_id,
            filename="results.json",
            purpose="fine-tune-results",
            size_bytes=len(results),
            sha256=hashlib.sha256(results).hexdigest(),
            key=key,
            job_id=self.job_id,
        )
        with self.sessions.begin() as session:
            files.add(session, file)
            leases.finish(
                session, self.lease, JobStatus.SUCCEEDED, message="Improved.", results_file=file.id, trained_tokens=1234
            )

    def fail(self) -> None:
        error = {"code": "out_of_memory", "message": "The GPU is full.", "param": None, "fix": "Use a smaller batch."}
        with self.sessions.begin() as session:
            leases.finish(
                session,
                self.lease,
                JobStatus.FAILED,
                message="The GPU is full.",
                reason=StatusReason.OUT_OF_MEMORY,
                error=error,
            )


def rollout(index: int) -> dict[str, Any]:
    """As `worker.run_directory.Rollout` writes it."""
    return {
        "index": index,
        "row": 1 + index // 2,
        "prompt": "1 + 1?",
        "completion": "2",
        "grades": {"exact": {"outcome": "scored", "value": 1.0, "error": None}},
        "reward": 1.0,
        "advantage": 0.0,
        "completion_tokens": 1,
        "finish_reason": "stop",
    }
