"""Checkpoints on their way into the store and back: objects first, the row last, and every digest looked at."""

import json
import signal
import time
from pathlib import Path

import pytest

from core import keys
from core.db import checkpoints as committed
from core.db.leases import Lease, LeaseLost
from core.ids import JobId
from core.spec import CheckpointSpec
from core.status import JobStatus
from core.storage.store import StoreUnavailable
from tests.factories import claimed, event_codes, expire, read_job
from tests.polling import wait_until
from tests.ports import free_port
from tests.servers.s3_gateway import Gateway, running_gateway
from tests.servers.seaweedfs import S3Server
from tests.worker.workshop import Workshop
from worker import checkpoints, janitor
from worker.run_directory import CheckpointSaved

TWO_CHECKPOINTS = [["baseline"], ["steps", 2], ["checkpoint_and_wait"], ["steps", 2], ["checkpoint_and_wait"], ["die"]]
RESUME_AND_FINISH = [["steps", 4], ["finish"]]


def save(folder: Path, step: int, content: bytes = b"weights", *, is_best: bool = False) -> CheckpointSaved:
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "weights.safetensors").write_bytes(content)
    (folder / "trainer_state.json").write_text(json.dumps({"step": step}))
    return CheckpointSaved(at=time.time(), step=step, metrics={"reward": 0.5}, is_best=is_best)


def commit(workshop: Workshop, lease: Lease, step: int, *, is_best: bool = False) -> None:
    folder = workshop.folder / f"step-{step}-a{lease.attempt}"
    checkpoints.commit(workshop.sessions, workshop.store, lease, folder, save(folder, step, is_best=is_best))


def restore(workshop: Workshop, lease: Lease, folder: Path) -> int | None:
    return checkpoints.restore_newest(workshop.sessions, workshop.store, lease, folder)


def stored(workshop: Workshop, job_id: str, step: int, name: str) -> Path:
    """The object's file in the folder store."""
    root = Path(workshop.settings.store_url.removeprefix("file://"))
    return root / keys.checkpoint(job_id, step, 1) / name


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["state.json", "only-in-step-4.bin", "MANIFEST.json"])
@pytest.mark.parametrize("damage", [flip_a_byte, cut_in_half, Path.unlink])
def test_a_resume_falls_back_from_a_damaged_checkpoint_and_says_so(workshop: Workshop, name, damage):
    workshop.script(TWO_CHECKPOINTS, RESUME_AND_FINISH)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    assert read_job(workshop.sessions, job_id).durable_step == 4
    damage(stored(workshop, job_id, 4, name))
    workshop.supervise(job_id)
    assert workshop.status(job_id) is JobStatus.SUCCEEDED
    whole = {"step": 2, "attempt": 1, "files": ["only-in-step-2.bin", "state.json"]}
    assert workshop.event(job_id, "state") == whole, "nothing of the damaged one is left in the folder"
    assert workshop.event(job_id, "resumed") == {"step": 2, "redone_steps": 2}
    report = workshop.event(job_id, "checkpoint_corrupt")
    assert (report["step"], report["attempt"]) == (4, 1)
    assert [(step.step, step.attempt) for step in workshop.steps(job_id)][:4] == [(1, 1), (2, 1), (3, 2), (4, 2)]


def test_without_a_whole_checkpoint_the_run_begins_again(workshop: Workshop):
    workshop.script(TWO_CHECKPOINTS, RESUME_AND_FINISH)
    job_id = workshop.queue()
    workshop.supervise(job_id)
    for step in (2, 4):
        flip_a_byte(stored(workshop, job_id, step, "state.json"))
    workshop.supervise(job_id)
    codes = event_codes(workshop.sessions, job_id)
    assert codes.count("checkpoint_corrupt") == 2
    assert "resumed" not in codes
    assert [(s.step, s.attempt) for s in workshop.steps(job_id)] == [(1, 2), (2, 2), (3, 2), (4, 2)]
    assert workshop.attempts(job_id)[1].resumed_from_step is None


def test_a_damaged_checkpoint_is_reported_once_and_never_tried_again(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    for step in (2, 4):
        commit(workshop, lease, step)
    flip_a_byte(stored(workshop, lease.job_id, 4, "trainer_state.json"))
    assert restore(workshop, lease, workshop.folder / "first") == 2
    assert restore(workshop, lease, workshop.folder / "second") == 2
    assert event_codes(workshop.sessions, lease.job_id).count("checkpoint_corrupt") == 1


def test_a_store_that_is_away_does_not_condemn_a_checkpoint(workshop: Workshop, monkeypatch: pytest.MonkeyPatch):
    lease = claimed(workshop.sessions, workshop.queue())
    commit(workshop, lease, 2)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    workshop.set(store_url="s3://nobody/here", s3_endpoint_url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(StoreUnavailable):
        restore(workshop, lease, workshop.folder / "resume")
    assert read_job(workshop.sessions, lease.job_id).durable_step == 2


def test_a_repeated_commit_of_the_best_leaves_it_the_best(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    folder = workshop.folder / "step-2"
    best = save(folder, 2).model_copy(update={"is_best": True})
    for _ in range(2):
        checkpoints.commit(workshop.sessions, workshop.store, lease, folder, best)
    with workshop.sessions() as session:
        assert [row.is_best for row in committed.usable(session, lease.job_id)] == [True]


def test_a_commit_may_be_repeated(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    folder = workshop.folder / "step-2"
    saved = save(folder, 2)
    for _ in range(2):
        checkpoints.commit(workshop.sessions, workshop.store, lease, folder, saved)
    with workshop.sessions() as session:
        assert len(list(committed.usable(session, lease.job_id))) == 1
    assert event_codes(workshop.sessions, lease.job_id).count("checkpoint") == 1


def test_the_upload_of_a_stale_attempt_never_becomes_a_checkpoint(workshop: Workshop):
    stale = claimed(workshop.sessions, workshop.queue())
    expire(workshop.sessions, stale.job_id)
    current = claimed(workshop.sessions, stale.job_id)
    with pytest.raises(LeaseLost):
        commit(workshop, stale, 8)
    commit(workshop, current, 2)
    assert restore(workshop, current, workshop.folder / "resume") == 2
    assert read_job(workshop.sessions, stale.job_id).durable_step == 2


def test_two_attempts_that_save_the_same_step_do_not_touch_each_others_objects(workshop: Workshop):
    first = claimed(workshop.sessions, workshop.queue())
    commit(workshop, first, 2)
    before = stored(workshop, first.job_id, 2, "MANIFEST.json").read_bytes()
    expire(workshop.sessions, first.job_id)
    second = claimed(workshop.sessions, first.job_id)
    commit(workshop, second, 2)
    assert stored(workshop, first.job_id, 2, "MANIFEST.json").read_bytes() == before


def kept_steps(workshop: Workshop, job_id: JobId) -> tuple[list[int], list[int]]:
    """The steps that the ledger offers, and those of which the store has anything."""
    with workshop.sessions() as session:
        offered = sorted(checkpoint.step for checkpoint in committed.usable(session, job_id))
    places = {keys.place_of(info.key) for info in workshop.store.list(keys.job(job_id))}
    return offered, sorted(place.step for place in places if isinstance(place, keys.CheckpointPlace))


def test_the_newest_the_best_and_the_pinned_stay_and_the_others_go(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue(checkpoints=CheckpointSpec(every_steps=2, keep=2)))
    commit(workshop, lease, 2)
    commit(workshop, lease, 4, is_best=True)
    commit(workshop, lease, 6)
    assert kept_steps(workshop, lease.job_id) == ([4, 6], [4, 6])
    with workshop.sessions.begin() as session:
        newest = committed.at_step(session, lease.job_id, 6)
        assert newest is not None
        committed.pin(session, newest.id)
    for step in (8, 10, 12):
        commit(workshop, lease, step)
    assert kept_steps(workshop, lease.job_id) == ([4, 6, 10, 12], [4, 6, 10, 12])
    commit(workshop, lease, 14, is_best=True)
    assert kept_steps(workshop, lease.job_id) == ([6, 12, 14], [6, 12, 14]), "the former best is a step like others"


def test_a_step_that_two_attempts_saved_is_kept_as_one(workshop: Workshop):
    first = claimed(workshop.sessions, workshop.queue(checkpoints=CheckpointSpec(every_steps=2, keep=2)))
    for step in (2, 4):
        commit(workshop, first, step)
    expire(workshop.sessions, first.job_id)
    commit(workshop, claimed(workshop.sessions, first.job_id), 4)
    assert kept_steps(workshop, first.job_id) == ([2, 4, 4], [2, 4, 4])


def test_a_later_attempt_resumes_from_what_retention_kept_and_retires_it_in_turn(workshop: Workshop):
    first = claimed(workshop.sessions, workshop.queue(checkpoints=CheckpointSpec(every_steps=2, keep=1)))
    for step in (2, 4):
        commit(workshop, first, step)
    expire(workshop.sessions, first.job_id)
    second = claimed(workshop.sessions, first.job_id)
    assert restore(workshop, second, workshop.folder / "resume") == 4
    assert kept_steps(workshop, first.job_id) == ([4], [4])
    commit(workshop, second, 6)
    assert kept_steps(workshop, first.job_id) == ([6], [6])


def test_a_store_that_refuses_to_delete_costs_space_and_no_commit(
    workshop: Workshop, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    with running_gateway(Gateway(s3_server)) as gateway:  # it knows no POST, by which S3 deletes many objects
        workshop.set(store_url=f"s3://{s3_server.bucket}/retention", s3_endpoint_url=gateway.url)
        lease = claimed(workshop.sessions, workshop.queue(checkpoints=CheckpointSpec(every_steps=2, keep=1)))
        for step in (2, 4):
            commit(workshop, lease, step)
        assert kept_steps(workshop, lease.job_id) == ([4], [2, 4])
    assert read_job(workshop.sessions, lease.job_id).durable_step == 4


def test_a_death_between_giving_up_and_deleting_leaves_what_the_janitor_may_remove(workshop: Workshop):
    workshop.script([*TWO_CHECKPOINTS[:-1], ["die"]], RESUME_AND_FINISH)
    workshop.set(lease_ttl_s=2.0, lease_margin_s=0.5, gc_min_age_s=0.001)
    job_id = workshop.queue(checkpoints=CheckpointSpec(every_steps=2, keep=1))
    dead = workshop.start_supervisor(job_id, PODIUM_FAILPOINTS="retention.committed@2=kill")
    assert dead.wait(60) == -signal.SIGKILL
    assert kept_steps(workshop, job_id) == ([4], [2, 4])

    wait_until(lambda: resumed(workshop, job_id), what="the lease has run out")
    assert workshop.event(job_id, "resumed")["step"] == 4
    assert janitor.collect(workshop.sessions, workshop.store, workshop.settings).checkpoints == 1
    assert kept_steps(workshop, job_id) == ([4], [4])


def resumed(workshop: Workshop, job_id: JobId) -> bool:
    workshop.supervise(job_id)
    return workshop.status(job_id) is JobStatus.SUCCEEDED


def test_checkpoints_travel_through_a_real_s3_server(
    workshop: Workshop, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    workshop.set(store_url=f"s3://{s3_server.bucket}/checkpoints", s3_endpoint_url=s3_server.endpoint_url)
    lease = claimed(workshop.sessions, workshop.queue())
    for step in (2, 4):
        commit(workshop, lease, step)
    prefix = keys.checkpoint(lease.job_id, 4, 1)
    found = {info.key.removeprefix(prefix) for info in workshop.store.list(prefix)}
    assert found == {"MANIFEST.json", "adapter/weights.safetensors", "trainer_state.json"}
    assert restore(workshop, lease, workshop.folder / "resume") == 4
    assert (workshop.folder / "resume/adapter/weights.safetensors").read_bytes() == b"weights"
    workshop.store.put_bytes(f"{prefix}adapter/weights.safetensors", b"weighty")
    assert restore(workshop, lease, workshop.folder / "resume") == 2
    assert json.loads((workshop.folder / "resume/trainer_state.json").read_text()) == {"step": 2}


def test_who_goes_on_from_a_checkpoint_is_handed_its_evaluation_and_what_its_upload_took(workshop: Workshop) -> None:
    saved_then_evaluated = [["baseline"], ["steps", 2], ["checkpoint_and_wait"], ["evaluate"], ["exit", 1]]
    workshop.script(saved_then_evaluated, [["show_evaluations"], ["exit", 1]])
    job_id = workshop.queue()
    workshop.supervise(job_id)
    workshop.supervise(job_id)
    upload_s = workshop.event(job_id, "checkpoint")["upload_s"]
    assert workshop.event(job_id, "evaluations") == {"names": ["baseline", "step-2"], "upload_s": upload_s}
