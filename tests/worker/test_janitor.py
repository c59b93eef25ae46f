"""What the janitor removes from a store, and what it never touches. The ages are made; ledger and stores are real."""

import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import text, update

from core import keys
from core.db import checkpoints as committed
from core.db import files, grading_tasks, idempotency, leases, orphans
from core.db.leases import Lease
from core.db.models import Checkpoint, File, IdempotencyKey, now
from core.grading_tasks import GradingTaskKind
from core.ids import FileId, JobId, new_file_id, new_job_id
from core.spec import CheckpointSpec
from core.status import JobStatus, StatusReason
from core.storage.folder import FolderStore
from core.storage.s3 import s3_client
from core.storage.store import ObjectInfo, StoreError
from tests.factories import TENANT, claimed, expire, read_job
from tests.ledger import test_branches as branches
from tests.polling import wait_until
from tests.servers.seaweedfs import S3Server
from tests.worker.workshop import HAPPY, Workshop
from worker import checkpoints, janitor
from worker.janitor import Collected
from worker.run_directory import CheckpointSaved

DAY_S = 86_400.0
KEEP_ONE = CheckpointSpec(every_steps=1, keep=1)


def collect(workshop: Workshop) -> Collected:
    return janitor.collect(workshop.sessions, workshop.store, workshop.settings)


def age(workshop: Workshop, prefix: str = "") -> None:
    """Let everything under the prefix have been written two days ago."""
    for path in (root(workshop) / prefix).rglob("*"):
        os.utime(path, (time.time() - 2 * DAY_S,) * 2)


def root(workshop: Workshop) -> Path:
    assert isinstance(workshop.store, FolderStore)
    return workshop.store.root


def stored(workshop: Workshop, prefix: str = "") -> set[str]:
    return {info.key for info in workshop.store.list(prefix)}


def tear(workshop: Workshop, lease: Lease, step: int) -> str:
    """A checkpoint whose upload ended before its row: the prefix."""
    prefix = keys.checkpoint(lease.job_id, step, lease.attempt)
    workshop.store.put_bytes(f"{prefix}adapter/weights.safetensors", b"weights")
    workshop.store.put_bytes(f"{prefix}trainer_state.json", b"{}")
    return prefix


def commit(workshop: Workshop, lease: Lease, step: int) -> str:
    folder = workshop.folder / f"{lease.job_id}-{step}-{lease.attempt}"
    folder.mkdir()
    (folder / "weights").write_bytes(b"weights")
    saved = CheckpointSaved(at=time.time(), step=step, metrics={}, is_best=False)
    checkpoints.commit(workshop.sessions, workshop.store, lease, folder, saved)
    return keys.checkpoint(lease.job_id, step, lease.attempt)


def leave(workshop: Workshop, lease: Lease, status: JobStatus) -> None:
    with workshop.sessions.begin() as session:
        match status:
            case JobStatus.QUEUED:
                leases.release(session, lease, reason=StatusReason.PREEMPTED, message="Gone.")
            case JobStatus.PAUSED:
                leases.pause(session, lease, reason=StatusReason.USER_PAUSED, message="Paused.", data={})
            case _:
                leases.finish(session, lease, status, message="Over.")


def mark(workshop: Workshop, lease: Lease, step: int, **values: object) -> None:
    with workshop.sessions.begin() as session:
        rows = update(Checkpoint).where(Checkpoint.job_id == lease.job_id, Checkpoint.step == step)
        session.execute(rows.values(**values))


def add_file(workshop: Workshop) -> FileId:
    file_id = new_file_id()
    key = keys.data_file(file_id)
    workshop.store.put_bytes(key, b"{}\n")
    file = File(
        id=file_id, tenant_id=TENANT, filename="f", purpose="fine-tune", size_bytes=3, sha256="", key=key, rows=1
    )
    with workshop.sessions.begin() as session:
        files.add(session, file)
    return file_id


def test_a_torn_checkpoint_of_an_earlier_attempt_goes_and_the_committed_ones_stay(workshop: Workshop):
    first = claimed(workshop.sessions, workshop.queue())
    live, torn = commit(workshop, first, 2), tear(workshop, first, 4)
    expire(workshop.sessions, first.job_id)
    second = claimed(workshop.sessions, first.job_id)
    age(workshop, keys.JOBS)

    assert collect(workshop) == Collected(checkpoints=1)

    assert stored(workshop, torn) == set()
    assert checkpoints.restore_newest(workshop.sessions, workshop.store, second, workshop.folder / "resume") == 2
    assert stored(workshop, live) == {f"{live}weights", keys.manifest(live)}
    assert collect(workshop) == Collected()


@pytest.mark.parametrize("status", [s for s in JobStatus if s not in (JobStatus.VALIDATING_FILES, JobStatus.RUNNING)])
def test_what_the_attempt_that_holds_the_job_uploads_is_spared_until_it_leaves(workshop: Workshop, status: JobStatus):
    lease = claimed(workshop.sessions, workshop.queue())
    torn = tear(workshop, lease, 4)
    age(workshop, keys.JOBS)

    assert collect(workshop) == Collected()
    assert len(stored(workshop, torn)) == 2

    leave(workshop, lease, status)
    assert collect(workshop) == Collected(checkpoints=1)
    assert stored(workshop, torn) == set()


def test_an_upload_of_which_any_part_is_young_is_spared(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    torn = tear(workshop, lease, 4)
    leave(workshop, lease, JobStatus.FAILED)
    age(workshop, torn)
    workshop.store.put_bytes(f"{torn}optimizer.pt", b"just arrived")

    assert collect(workshop) == Collected()
    assert len(stored(workshop, torn)) == 3


def test_what_retention_gave_up_and_could_not_delete_goes_while_the_run_goes_on(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    prefixes = [commit(workshop, lease, step) for step in (2, 4)]
    with workshop.sessions.begin() as session:
        committed.collect_superseded(session, lease.job_id, keep=1)
    age(workshop, keys.JOBS)

    assert collect(workshop) == Collected(checkpoints=1)

    assert [bool(stored(workshop, prefix)) for prefix in prefixes] == [False, True]


def test_a_damaged_checkpoint_can_be_looked_at_for_a_day(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    for step in (2, 4, 6):
        commit(workshop, lease, step)
    age(workshop, keys.JOBS)
    mark(workshop, lease, 2, corrupt_at=now())
    mark(workshop, lease, 4, corrupt_at=now() - timedelta(seconds=2 * DAY_S))
    mark(workshop, lease, 6, corrupt_at=now() - timedelta(seconds=2 * DAY_S), pinned=True)

    assert collect(workshop) == Collected(checkpoints=1)

    left = {keys.place_of(key) for key in stored(workshop, keys.JOBS)}
    assert left == {keys.CheckpointPlace(lease.job_id, step, 1) for step in (2, 6)}


class BusyStore(FolderStore):
    """Something happens between the listing and what follows from it."""

    meanwhile: Callable[[], None]

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        yield from super().list(prefix)
        if prefix == keys.JOBS:
            self.meanwhile()


def test_a_checkpoint_that_is_committed_while_the_janitor_looks_stays(workshop: Workshop):
    """Its attempt has even left the job when the janitor decides."""
    lease = claimed(workshop.sessions, workshop.queue())
    store = BusyStore(root(workshop))
    torn = tear(workshop, lease, 4)
    age(workshop, keys.JOBS)

    def commit_and_leave() -> None:
        with workshop.sessions.begin() as session:
            leases.hold(session, lease)
            facts = {"step": 4, "prefix": torn, "manifest_sha256": "", "files": [], "metrics": {}, "is_best": False}
            committed.add(session, lease, **facts)
        leave(workshop, lease, JobStatus.SUCCEEDED)

    store.meanwhile = commit_and_leave

    assert janitor.collect(workshop.sessions, store, workshop.settings) == Collected()
    assert len(stored(workshop, torn)) == 2


def test_artifacts_that_were_never_shown_go_once_the_job_is_over(workshop: Workshop):
    workshop.script(HAPPY)
    job_id = workshop.queue()
    stale = claimed(workshop.sessions, job_id)
    unseen = keys.artifact(job_id, stale.attempt, "adapter/adapter_model.safetensors")
    workshop.store.put_bytes(unseen, b"weights")
    expire(workshop.sessions, job_id)
    age(workshop, keys.JOBS)
    assert collect(workshop) == Collected()

    workshop.supervise(job_id)
    shown = {artifact.key for artifact in workshop.artifacts(job_id).values()}
    age(workshop, keys.JOBS)

    assert collect(workshop) == Collected(publications=1)
    assert stored(workshop, f"jobs/{job_id}/artifacts/") == shown
    assert shown


def test_only_files_that_nobody_can_ask_for_go(workshop: Workshop):
    kept, deleted, young = add_file(workshop), add_file(workshop), new_file_id()
    with workshop.sessions.begin() as session:
        files.delete(session, deleted)
    workshop.store.put_bytes(keys.data_file(new_file_id()), b"never recorded")
    age(workshop, keys.DATA_FILES)
    workshop.store.put_bytes(keys.data_file(young), b"its row is about to come")

    assert collect(workshop) == Collected(files=2)

    assert stored(workshop) == {keys.data_file(kept), keys.data_file(young)}


@pytest.mark.parametrize("foreign", ["a job", "an attempt"])
def test_what_another_ledger_may_own_is_never_touched(workshop: Workshop, foreign: str):
    """A second installation in the same bucket, or this one after an old backup came back."""
    lease = claimed(workshop.sessions, workshop.queue())
    leave(workshop, lease, JobStatus.CANCELLED)
    job_id, attempt = (new_job_id(), 1) if foreign == "a job" else (lease.job_id, lease.attempt + 1)
    workshop.store.put_bytes(keys.checkpoint(job_id, 2, attempt) + "weights", b"weights")
    workshop.store.put_bytes(keys.artifact(job_id, attempt, "results.json"), b"{}")
    workshop.store.put_bytes(keys.data_file(new_file_id()), b"a data set")
    age(workshop)
    before = stored(workshop)

    assert collect(workshop) == Collected()
    assert stored(workshop) == before


def test_keys_that_podium_does_not_make_are_left_alone(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    leave(workshop, lease, JobStatus.FAILED)
    strange = {
        "README",
        "files/a/b",
        f"jobs/{lease.job_id}/notes.txt",
        f"jobs/{lease.job_id}/checkpoints/4-a1/weights",
        f"jobs/{lease.job_id}/artifacts/a1/results.json",
    }
    for key in strange:
        workshop.store.put_bytes(key, b"x")
    age(workshop)

    assert collect(workshop).checkpoints == 0
    assert strange <= stored(workshop)


def test_what_broken_writes_and_self_tests_left_goes(workshop: Workshop):
    draft = root(workshop) / ".partial" / "draft"
    workshop.store.put_bytes(keys.probe("left-by-a-killed-check"), b"probe")
    draft.write_bytes(b"half")
    age(workshop)

    assert collect(workshop) == Collected(uploads=1, probes=1)
    assert stored(workshop) == set()
    assert not draft.exists()


def test_idempotency_keys_are_forgotten_after_a_week_also_while_the_store_is_away(workshop: Workshop):
    with workshop.sessions.begin() as session:
        for key in ("old", "new"):
            idempotency.save(session, TENANT, key, fingerprint="", status=201, body={})
        week_ago = now() - timedelta(days=7, minutes=1)
        session.execute(update(IdempotencyKey).where(IdempotencyKey.key == "old").values(created_at=week_ago))
    workshop.set(store_url="file:///proc/version/store")

    with pytest.raises(StoreError):
        collect(workshop)
    with workshop.sessions() as session:
        assert idempotency.find(session, TENANT, "old") is None
        assert idempotency.find(session, TENANT, "new") is not None


def test_grading_tasks_are_forgotten_after_a_day(workshop: Workshop):
    with workshop.sessions.begin() as session:
        for age_s in (DAY_S + 60, 60.0):
            task = grading_tasks.add(session, tenant_id=TENANT, kind=GradingTaskKind.RUN_GRADER, request={})
            task.finished_at = now() - timedelta(seconds=age_s)

    assert collect(workshop) == Collected(grading_tasks=1)


def test_only_one_collects_at_a_time_and_it_blocks_no_row_meanwhile(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    tear(workshop, lease, 4)
    leave(workshop, lease, JobStatus.FAILED)
    age(workshop, keys.JOBS)
    with orphans.only_collector(workshop.sessions) as first:
        assert first
        assert collect(workshop) == Collected()
        with workshop.sessions() as session:
            holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"
            states = session.scalars(text(f"SELECT state FROM pg_stat_activity WHERE pid IN ({holder})"))
            assert states.all() == ["idle"], "a transaction would be ended by the server after some seconds"

    assert collect(workshop) == Collected(checkpoints=1)


class CountedRounds(threading.Event):
    """The janitor waits on it once after each round."""

    ended = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.ended += 1
        return super().wait(timeout)


def test_a_round_that_fails_is_not_the_last(workshop: Workshop):
    lease = claimed(workshop.sessions, workshop.queue())
    torn = tear(workshop, lease, 4)
    leave(workshop, lease, JobStatus.FAILED)
    age(workshop, keys.JOBS)
    folder, away = root(workshop), root(workshop).with_name("away")
    folder.rename(away)
    folder.write_bytes(b"not a folder")
    stop = CountedRounds()
    settings = workshop.settings.model_copy(update={"gc_every_s": 0.01})
    thread = threading.Thread(target=janitor.tend, args=(workshop.sessions, settings, stop))
    thread.start()
    try:
        wait_until(lambda: stop.ended >= 2, what="two rounds have failed")
        folder.unlink()
        away.rename(folder)
        wait_until(lambda: not stored(workshop, torn), what="the torn checkpoint is gone")
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_the_same_is_collected_from_a_real_s3_server(
    workshop: Workshop, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
):
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    prefix = new_job_id()
    workshop.set(
        store_url=f"s3://{s3_server.bucket}/{prefix}", s3_endpoint_url=s3_server.endpoint_url, gc_min_age_s=1.0
    )
    lease = claimed(workshop.sessions, workshop.queue())
    live, torn = commit(workshop, lease, 2), tear(workshop, lease, 4)
    leave(workshop, lease, JobStatus.FAILED)
    kept = add_file(workshop)
    workshop.store.put_bytes(keys.probe("left"), b"probe")
    client = s3_client(s3_server.endpoint_url)
    client.create_multipart_upload(Bucket=s3_server.bucket, Key=f"{prefix}/{live}weights")
    client.close()
    removed: Counter[str] = Counter()

    def are_all_gone() -> bool:
        removed.update(asdict(collect(workshop)))
        return removed["checkpoints"] == removed["uploads"] == removed["probes"] == 1

    wait_until(are_all_gone, what="what nobody owns is old enough")
    assert collect(workshop) == Collected()
    assert removed["files"] == 2, "the job's data was stored without rows"
    assert stored(workshop, torn) == set()
    assert stored(workshop) == {keys.data_file(kept), f"{live}weights", keys.manifest(live)}


def test_a_silent_store_delays_no_hint_and_no_leaving(workshop: Workshop, valkey_url: str):
    """The store takes the dispatcher's connection, and never says a word."""
    workshop.script(HAPPY)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        workshop.set(broker_url=SecretStr(valkey_url), dispatch_poll_s=0.05)
        keys_of_nobody = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        store = {"PODIUM_STORE_URL": "s3://nobody/here", "PODIUM_S3_ENDPOINT_URL": endpoint}
        dispatcher = workshop.start("worker.dispatcher", **store, **keys_of_nobody)
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection:
            job_id: JobId = workshop.queue()
            wait_until(lambda: read_job(workshop.sessions, job_id).hinted_at, what="the job is hinted")
            dispatcher.send_signal(signal.SIGTERM)
            assert dispatcher.wait(20) == 0


def test_the_dispatcher_collects_again_and_again(workshop: Workshop, valkey_url: str):
    workshop.set(broker_url=SecretStr(valkey_url), dispatch_poll_s=0.05)
    workshop.start("worker.dispatcher", PODIUM_GC_EVERY_S="0.1")
    for _ in range(2):
        lease = claimed(workshop.sessions, workshop.queue())
        torn = tear(workshop, lease, 4)
        leave(workshop, lease, JobStatus.FAILED)
        age(workshop, keys.JOBS)
        wait_until(lambda torn=torn: not stored(workshop, torn), what=f"{torn} is gone")


def test_what_is_kept_for_branches_of_one_job_does_not_hold_up_what_is_for_those_of_another(workshop: Workshop):
    """As while a branch is being made: retention waits for its lock."""
    parents = [claimed(workshop.sessions, workshop.queue(checkpoints=KEEP_ONE)) for _ in range(2)]
    for parent in parents:
        branches.save(workshop.sessions, parent, 1, 2)
        with workshop.sessions.begin() as session:
            branch_id = branches.begin_from(session, parent, 1)
        branches.end(workshop.sessions, parent)
        branches.end(workshop.sessions, claimed(workshop.sessions, branch_id))
    older, younger = parents
    with workshop.sessions.begin() as session:
        branches.begin_from(session, younger, 1)
        janitor_thread = threading.Thread(target=collect, args=(workshop,))
        janitor_thread.start()
        wait_until(lambda: branches.is_waiting_for_a_lock(workshop.sessions), what="the janitor waits for the branch")
        assert branches.kept(workshop.sessions, older) == [2]
    janitor_thread.join(30)
    assert branches.kept(workshop.sessions, younger) == [2, 1]
