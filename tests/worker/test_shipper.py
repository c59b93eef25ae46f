"""From the journal into the ledger: in order, once, and no later than the lease."""

import time
from pathlib import Path

import pytest

from bench._chaos.samples import make_rollout
from core.db import checkpoints as committed
from core.db import learning, progress
from core.db.leases import LeaseLost
from core.spec import RecordSpec
from core.storage.folder import FolderStore
from core.storage.store import OCTETS, StoreMisconfigured
from tests.factories import claimed, event_codes, expire, read_job
from tests.polling import wait_until
from tests.worker.slow_store import SlowStore
from tests.worker.workshop import Workshop
from worker.run_directory import CheckpointSaved, CheckpointScored, Notice, RolloutsDone, RunDirectory, StepDone
from worker.shipper import ENTRIES_PER_TRANSACTION, Shipper


@pytest.fixture
def slow_store(workshop: Workshop):
    store = SlowStore(workshop.folder / "slow")
    yield store
    store.go_on.set()


@pytest.fixture
def run(workshop: Workshop) -> RunDirectory:
    folder = workshop.folder / "run"
    (folder / "checkpoints").mkdir(parents=True)
    return RunDirectory(folder)


@pytest.fixture
def lease(workshop: Workshop):
    return claimed(workshop.sessions, workshop.queue())


@pytest.fixture
def shipper(workshop: Workshop, lease, run):
    shipper = Shipper(workshop.sessions, workshop.store, lease, run)
    yield shipper
    shipper.close()


def notice(run: RunDirectory, code: str) -> None:
    run.append(Notice(at=time.time(), code=code, message=code))


def save_checkpoint(run: RunDirectory, step: int, *, is_best: bool = False) -> None:
    run.checkpoint(step).mkdir()
    (run.checkpoint(step) / "state.json").write_text(str(step))
    run.append(CheckpointSaved(at=time.time(), step=step, metrics={}, is_best=is_best))


def ship_all(shipper: Shipper) -> None:
    def drained() -> bool:
        shipper.ship()
        return shipper.is_drained()

    wait_until(drained, what="everything is shipped")


def test_entries_arrive_in_order_over_many_transactions(workshop, lease, run, shipper):
    count = 2 * ENTRIES_PER_TRANSACTION + 3
    for number in range(count):
        notice(run, f"n{number}")
    ship_all(shipper)
    assert event_codes(workshop.sessions, lease.job_id)[2:] == [f"n{number}" for number in range(count)]


def test_what_a_lost_answer_had_written_is_not_written_again(workshop, lease, run, shipper):
    """A commit that reached the ledger while its answer did not: the shipper only knows that it failed."""
    notice(run, "one")
    notice(run, "two")
    ship_all(shipper)
    unaware = Shipper(workshop.sessions, workshop.store, lease, run)
    notice(run, "three")
    ship_all(unaware)
    unaware.close()
    assert event_codes(workshop.sessions, lease.job_id)[2:] == ["one", "two", "three"]


def test_the_disk_gets_back_what_was_shipped(workshop, lease, run, shipper):
    long = Notice(at=1.0, code="long", message="x", data={"text": "y" * 1_000_000})
    for _ in range(12):
        run.append(long)
    assert run.journal.stat().st_blocks * 512 > 11_000_000
    shipper.ship()
    run.append(Notice(at=2.0, code="last", message="x"))
    shipper.ship()
    assert run.journal.stat().st_blocks * 512 < 4_000_000
    assert shipper.is_drained()
    assert event_codes(workshop.sessions, lease.job_id)[-13:] == ["long"] * 12 + ["last"]


def test_a_line_that_is_still_being_written_waits(workshop, lease, run, shipper):
    step = StepDone(at=1.0, step=1, metrics={"reward": 1.0}).model_dump_json() + "\n"
    with run.journal.open("w") as journal:
        journal.write(step[:20])
        journal.flush()
        shipper.ship()
        assert workshop.steps(lease.job_id) == []
        journal.write(step[20:])
    ship_all(shipper)
    assert [row.step for row in workshop.steps(lease.job_id)] == [1]


def test_a_shipper_that_lost_its_lease_writes_nothing(workshop, lease, run, shipper):
    notice(run, "late")
    expire(workshop.sessions, lease.job_id)
    with pytest.raises(LeaseLost):
        shipper.ship()
    assert "late" not in event_codes(workshop.sessions, lease.job_id)


def test_an_upload_that_ends_after_the_lease_is_no_checkpoint(workshop, lease, run, slow_store):
    shipper = Shipper(workshop.sessions, slow_store, lease, run)
    save_checkpoint(run, 2)
    shipper.ship()
    expire(workshop.sessions, lease.job_id)
    slow_store.go_on.set()
    with pytest.raises(LeaseLost):
        ship_all(shipper)
    shipper.close()
    assert read_job(workshop.sessions, lease.job_id).durable_step is None


def test_a_checkpoint_that_is_durable_leaves_the_disk(workshop, lease, run, shipper):
    save_checkpoint(run, 2)
    ship_all(shipper)
    assert read_job(workshop.sessions, lease.job_id).durable_step == 2
    assert not run.checkpoint(2).exists()


def test_what_an_upload_took_is_told_to_the_trainer_and_kept(workshop, lease, run, shipper):
    assert run.read_upload_s() is None
    save_checkpoint(run, 2)
    ship_all(shipper)
    assert run.read_upload_s() == workshop.event(lease.job_id, "checkpoint")["upload_s"]


def test_of_waiting_checkpoints_only_the_newest_and_the_best_are_uploaded(workshop, lease, run, shipper):
    for step in (2, 4, 6, 8):
        save_checkpoint(run, step, is_best=step == 4)
    ship_all(shipper)
    data = [event for event in event_codes(workshop.sessions, lease.job_id) if event == "checkpoint"]
    assert len(data) == 2
    assert read_job(workshop.sessions, lease.job_id).durable_step == 8
    assert not any(run.checkpoint(step).exists() for step in (2, 4, 6, 8))


def test_however_long_an_upload_takes_three_checkpoints_are_on_the_disk(workshop, lease, run, slow_store, slow_shipper):
    for step in (2, 4, 6, 8, 10):
        save_checkpoint(run, step, is_best=step == 4)
        slow_shipper.ship()
    assert [step for step in (2, 4, 6, 8, 10) if run.checkpoint(step).exists()] == [2, 4, 10]
    slow_store.go_on.set()
    ship_all(slow_shipper)
    assert event_codes(workshop.sessions, lease.job_id).count("checkpoint") == 3


class ForbiddenStore(FolderStore):
    """Until it is mended."""

    is_forbidden = True
    refused = 0

    def put_file(self, key: str, path: Path, *, sha256: str, content_type: str = OCTETS) -> None:
        if self.is_forbidden:
            self.refused += 1
            raise StoreMisconfigured("The store says 403.", fix="Give the worker's key the right to write.")
        super().put_file(key, path, sha256=sha256, content_type=content_type)


def test_a_store_that_refuses_is_told_once_with_what_to_do_and_tried_until_it_is_mended(workshop, lease, run):
    store = ForbiddenStore(workshop.folder / "forbidden")
    shipper = Shipper(workshop.sessions, store, lease, run)
    save_checkpoint(run, 2)

    def was_refused_thrice() -> bool:
        shipper.ship()
        return store.refused >= 3

    wait_until(was_refused_thrice, what="the store refuses")
    assert event_codes(workshop.sessions, lease.job_id).count("store_misconfigured") == 1
    assert workshop.event(lease.job_id, "store_misconfigured") == {"fix": "Give the worker's key the right to write."}
    store.is_forbidden = False
    ship_all(shipper)
    shipper.close()
    assert read_job(workshop.sessions, lease.job_id).durable_step == 2


@pytest.fixture
def slow_shipper(workshop: Workshop, lease, run, slow_store):
    shipper = Shipper(workshop.sessions, slow_store, lease, run)
    yield shipper
    shipper.close()


def score_checkpoint(run: RunDirectory, step: int) -> None:
    run.append(CheckpointScored(at=time.time(), step=step, metrics={"held_out/pass_rate": 0.5}, is_best=True))


def best_checkpoint(workshop: Workshop, lease) -> tuple[int, dict[str, float | None]]:
    with workshop.sessions() as session:
        ((step, metrics),) = [(row.step, row.metrics) for row in committed.usable(session, lease.job_id) if row.is_best]
    return step, metrics


def test_a_checkpoint_that_is_durable_learns_its_score_later(workshop, lease, run, shipper):
    save_checkpoint(run, 2)
    ship_all(shipper)
    score_checkpoint(run, 2)
    ship_all(shipper)
    assert best_checkpoint(workshop, lease) == (2, {"held_out/pass_rate": 0.5})


def test_a_score_that_comes_during_the_upload_is_not_lost(workshop, lease, run, slow_store, slow_shipper):
    save_checkpoint(run, 2)
    slow_shipper.ship()
    score_checkpoint(run, 2)
    slow_shipper.ship()
    slow_store.go_on.set()
    ship_all(slow_shipper)
    assert best_checkpoint(workshop, lease) == (2, {"held_out/pass_rate": 0.5})
    assert workshop.event(lease.job_id, "checkpoint")["best"] is True


def test_a_waiting_checkpoint_that_turns_out_the_best_is_uploaded(workshop, lease, run, slow_store, slow_shipper):
    save_checkpoint(run, 2)
    slow_shipper.ship()
    save_checkpoint(run, 4)
    score_checkpoint(run, 4)
    save_checkpoint(run, 6)
    save_checkpoint(run, 8)
    slow_store.go_on.set()
    ship_all(slow_shipper)
    assert best_checkpoint(workshop, lease) == (4, {"held_out/pass_rate": 0.5})
    assert read_job(workshop.sessions, lease.job_id).durable_step == 8
    assert not run.checkpoint(6).exists()


def test_a_slow_store_delays_only_its_own_checkpoint(workshop, lease, run, slow_store):
    shipper = Shipper(workshop.sessions, slow_store, lease, run)
    save_checkpoint(run, 2)
    shipper.ship()
    run.append(StepDone(at=1.0, step=3, metrics={"reward": 1.0}))
    shipper.ship()
    assert [row.step for row in workshop.steps(lease.job_id)] == [3]
    assert read_job(workshop.sessions, lease.job_id).durable_step is None
    assert not shipper.is_drained()
    slow_store.go_on.set()
    ship_all(shipper)
    shipper.close()
    assert read_job(workshop.sessions, lease.job_id).durable_step == 2


def test_rollouts_on_record_are_bounded_in_number_and_age(workshop: Workshop, run: RunDirectory):
    record = RecordSpec(rollouts_per_step=2, steps=3)
    lease = claimed(workshop.sessions, workshop.queue(record=record))
    shipper = Shipper(workshop.sessions, workshop.store, lease, run)
    for step in range(1, 6):
        batch = tuple(make_rollout(f"{step}-{index}").model_copy(update={"index": index}) for index in range(8))
        run.append(RolloutsDone(at=time.time(), step=step, rollouts=batch[:2] if step == 5 else batch))
        run.append(StepDone(at=time.time(), step=step, metrics={"reward": 0.5}))
    ship_all(shipper)
    shipper.close()
    left_out = [step.metrics.get("record/rollouts_left_out") for step in workshop.steps(lease.job_id)]
    assert left_out == [6, 6, 6, 6, None]
    with workshop.sessions() as session:
        counts = [len(progress.rollouts(session, lease.job_id, step=step)) for step in range(1, 6)]
    assert counts == [0, 0, 2, 2, 2]


def test_groups_are_counted_of_every_step_whatever_stays_of_their_rollouts(workshop: Workshop, run: RunDirectory):
    lease = claimed(workshop.sessions, workshop.queue(record=RecordSpec(rollouts_per_step=0, steps=1)))
    shipper = Shipper(workshop.sessions, workshop.store, lease, run)
    for step in (1, 2, 3):
        pair = [make_rollout("4").model_copy(update={"row": 7, "reward": reward}) for reward in (1.0, float(step > 2))]
        run.append(RolloutsDone(at=time.time(), step=step, rollouts=tuple(pair)))
        run.append(StepDone(at=time.time(), step=step, metrics={"phase/total_s": 1.0}))
    ship_all(shipper)
    shipper.close()
    with workshop.sessions() as session:
        taught = learning.taught(session, lease.job_id)
    assert taught.prompts.ever_mixed.rows == (7,)
    assert [(window.from_step, window.mixed, window.all_right) for window in taught.windows] == [
        (1, 1, 0),
        (2, 1, 0),
        (3, 0, 1),
    ]
    assert taught.bill is not None
    assert taught.bill.seconds == 3
