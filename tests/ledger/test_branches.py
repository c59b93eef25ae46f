"""What a branch begins from stays as long as it may be read, whoever looks at the same moment."""

import threading
from typing import Any

from sqlalchemy import text

from core.db import checkpoints, leases
from core.db.leases import Lease
from core.db.session import Sessions
from core.spec import CheckpointRef, CheckpointSpec
from core.status import JobStatus
from tests.factories import add_job, claimed, make_spec, queued_job
from tests.polling import wait_until


def save(sessions: Sessions, lease: Lease, *steps: int) -> None:
    for step in steps:
        facts: dict[str, Any] = {"prefix": f"{step}/", "manifest_sha256": "", "files": [], "metrics": {}}
        with sessions.begin() as session:
            leases.hold(session, lease)
            checkpoints.add(session, lease, step=step, is_best=False, **facts)


def begin_from(session, lease: Lease, step: int):
    """A branch, as the API makes it: the checkpoint locked first."""
    found = checkpoints.at_step(session, lease.job_id, step)
    assert found is not None
    assert checkpoints.get_to_use(session, found.id) is not None
    start = CheckpointRef(
        job_id=lease.job_id, checkpoint_id=found.id, step=step, prefix=found.prefix, manifest_sha256=""
    )
    return add_job(session, spec=make_spec(start_from=start)).id


def end(sessions: Sessions, lease: Lease) -> None:
    with sessions.begin() as session:
        leases.finish(session, lease, JobStatus.SUCCEEDED, message="Over.")


def retain(sessions: Sessions, lease: Lease, keep: int) -> None:
    with sessions.begin() as session:
        checkpoints.collect_superseded(session, lease.job_id, keep=keep)


def kept(sessions: Sessions, lease: Lease) -> list[int]:
    with sessions() as session:
        return [one.step for one in checkpoints.usable(session, lease.job_id)]


def is_waiting_for_a_lock(sessions: Sessions) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with sessions() as session:
        return bool(session.scalar(text(query)))


def test_retention_sees_a_branch_that_was_begun_while_it_waited(sessions):
    """It decides after it has the lock: what it had read before that would not show the branch."""
    parent = claimed(sessions)
    save(sessions, parent, 1, 2)
    with sessions.begin() as session:
        begin_from(session, parent, 1)
        retention = threading.Thread(target=retain, args=(sessions, parent, 1))
        retention.start()
        wait_until(lambda: is_waiting_for_a_lock(sessions), what="retention waits for the branch")
    retention.join(30)
    assert kept(sessions, parent) == [2, 1]


def test_what_an_ended_job_kept_for_a_branch_goes_with_its_need(sessions):
    """Nobody commits a checkpoint of that job any more, so nobody else would look."""
    spec = make_spec(checkpoints=CheckpointSpec(every_steps=1, keep=1))
    parent = claimed(sessions, queued_job(sessions, spec=spec))
    save(sessions, parent, 1, 2, 3)
    with sessions.begin() as session:
        branch_id = begin_from(session, parent, 1)
    end(sessions, parent)

    def collect() -> int:
        with sessions.begin() as session:
            parents = checkpoints.ended_parents(session)
            return sum(len(checkpoints.collect_superseded(session, job_id, keep=keep)) for job_id, keep in parents)

    assert (collect(), kept(sessions, parent)) == (1, [3, 1])
    branch = claimed(sessions, branch_id)
    assert collect() == 0
    save(sessions, branch, 5)
    assert (collect(), kept(sessions, parent)) == (0, [3, 1]), "that one may turn out damaged"
    save(sessions, branch, 10)
    assert (collect(), kept(sessions, parent)) == (1, [3])
    assert kept(sessions, branch) == [10, 5]


def test_a_branch_with_a_damaged_checkpoint_can_still_begin_again(sessions):
    parent = claimed(sessions)
    save(sessions, parent, 1, 2)
    with sessions.begin() as session:
        branch_id = begin_from(session, parent, 1)
    branch = claimed(sessions, branch_id)
    save(sessions, branch, 5, 10)
    with sessions.begin() as session:
        leases.hold(session, branch)
        damaged = checkpoints.at_step(session, branch_id, 10)
        assert damaged is not None
        checkpoints.mark_corrupt(session, branch, damaged.id)
    retain(sessions, parent, keep=1)
    assert kept(sessions, parent) == [2, 1]


def test_a_parent_that_is_not_over_sees_to_its_own_checkpoints(sessions):
    parent = claimed(sessions)
    save(sessions, parent, 1, 2, 3, 4)
    with sessions.begin() as session:
        branch = begin_from(session, parent, 1)
    end(sessions, claimed(sessions, branch))
    with sessions.begin() as session:
        assert checkpoints.ended_parents(session) == []
    assert kept(sessions, parent) == [4, 3, 2, 1]
