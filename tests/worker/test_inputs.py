"""What a run directory holds before the trainer starts, and what is said when something is missing."""

import time
from pathlib import Path

import pytest

from core import keys
from core.db import checkpoints as committed
from core.db.leases import Lease
from core.db.session import Sessions
from core.spec import CheckpointRef
from core.status import JobStatus
from tests.factories import claimed, event_codes, expire, read_job
from tests.worker.workshop import Workshop
from worker import checkpoints, inputs
from worker.run_directory import CheckpointSaved, RunDirectory


def commit(workshop: Workshop, lease: Lease, step: int, *, save_s: float = 0.0) -> None:
    folder = workshop.folder / f"step-{step}"
    folder.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json", "optimizer.pt"):
        (folder / name).write_text(f"{name} of step {step}")
    saved = CheckpointSaved(at=time.time(), step=step, metrics={}, is_best=False, save_s=save_s)
    checkpoints.commit(workshop.sessions, workshop.store, lease, folder, saved)


def reference(sessions: Sessions, job: Lease, step: int) -> CheckpointRef:
    with sessions() as session:
        found = committed.at_step(session, job.job_id, step)
    assert found is not None
    return CheckpointRef(
        job_id=job.job_id,
        checkpoint_id=found.id,
        step=step,
        prefix=found.prefix,
        manifest_sha256=found.manifest_sha256,
    )


def prepared(workshop: Workshop, lease: Lease) -> RunDirectory:
    run = RunDirectory(workshop.folder / "run" / f"a{lease.attempt}")
    inputs.prepare(workshop.sessions, workshop.store, lease, workshop.settings, run)
    return run


def next_attempt(workshop: Workshop, lease: Lease) -> Lease:
    expire(workshop.sessions, lease.job_id)
    return claimed(workshop.sessions, lease.job_id)


@pytest.fixture
def parent(workshop: Workshop) -> Lease:
    lease = claimed(workshop.sessions, workshop.queue())
    commit(workshop, lease, 2)
    return lease


def stored(workshop: Workshop, parent: Lease, name: str) -> Path:
    """Of the folder store."""
    root = Path(workshop.settings.store_url.removeprefix("file://"))
    return root / keys.checkpoint(parent.job_id, 2, parent.attempt) / name


def test_a_branch_is_handed_the_weights_that_it_begins_with_and_nothing_of_the_other_run(workshop, parent):
    branch = claimed(workshop.sessions, workshop.queue(start_from=reference(workshop.sessions, parent, 2)))
    start = prepared(workshop, branch).start
    assert sorted(path.name for path in start.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (start / "adapter_model.safetensors").read_text() == "adapter_model.safetensors of step 2"


def flip_a_byte(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


@pytest.mark.parametrize("name", ["MANIFEST.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("damage", [flip_a_byte, Path.unlink])
def test_a_branch_from_what_is_damaged_or_collected_says_so_and_never_starts(workshop, parent, damage, name):
    branch_id = workshop.queue(start_from=reference(workshop.sessions, parent, 2))
    damage(stored(workshop, parent, name))
    workshop.supervise(branch_id)
    assert workshop.status(branch_id) is JobStatus.FAILED
    error = read_job(workshop.sessions, branch_id).error
    assert error is not None
    assert error["code"] == "checkpoint_gone"
    assert workshop.steps(branch_id) == []


def test_what_a_save_took_is_known_to_the_next_attempt(workshop: Workshop) -> None:
    lease = claimed(workshop.sessions, workshop.queue())
    commit(workshop, lease, 2, save_s=7.25)
    assert prepared(workshop, next_attempt(workshop, lease)).read_plan().save_cost_s == 7.25


def test_that_a_run_goes_on_is_said_once_however_often_its_inputs_are_tried(workshop, parent):
    lease, models = next_attempt(workshop, parent), workshop.settings.models
    workshop.set(models={})
    for _ in range(2):
        with pytest.raises(inputs.ModelGone):
            prepared(workshop, lease)
    workshop.set(models=models)
    prepared(workshop, lease)
    assert event_codes(workshop.sessions, lease.job_id).count("resumed") == 1
