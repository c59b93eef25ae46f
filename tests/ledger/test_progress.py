"""What a run reports: steps exactly once, rollouts and evaluations by the rule, checkpoints newest first."""

import pytest

from core.db import checkpoints, leases, progress
from core.db.leases import Lease, LeaseLost
from core.status import JobStatus, Stage, StatusReason
from tests.factories import claimed, expire, queued_job, read_job


def report(sessions, lease: Lease, write, *arguments, **options):
    """One fenced write, as every caller makes it."""
    with sessions.begin() as session:
        leases.hold(session, lease)
        return write(session, lease, *arguments, **options)


def next_attempt(sessions, lease: Lease) -> Lease:
    expire(sessions, lease.job_id)
    return claimed(sessions, lease.job_id, max_failures=100)


def steps(sessions, lease: Lease, **window) -> list[tuple[int, int, float]]:
    with sessions() as session:
        rows = progress.steps(session, lease.job_id, **window)
        return [(row.step, row.attempt, row.metrics["reward"]) for row in rows]


def add_step(sessions, lease: Lease, step: int, reward: float) -> None:
    report(sessions, lease, progress.add_step, step, {"reward": reward})


def add_checkpoint(sessions, lease: Lease, step: int, *, is_best: bool = False) -> bool:
    return report(
        sessions,
        lease,
        checkpoints.add,
        step=step,
        prefix=f"jobs/x/checkpoints/{step}-a{lease.attempt}/",
        manifest_sha256="0" * 64,
        files=[{"name": "adapter.safetensors", "size_bytes": 3, "sha256": "1" * 64}],
        metrics={"reward": 0.5},
        is_best=is_best,
    )


def usable(sessions, lease: Lease) -> list[tuple[int, int]]:
    with sessions() as session:
        return [(c.step, c.attempt) for c in checkpoints.usable(session, lease.job_id)]


def add_evaluation(sessions, lease: Lease, name: str, step: int, mark: str) -> None:
    report(sessions, lease, progress.add_evaluation, name, step, {"mark": mark})


def test_a_step_that_the_same_attempt_sends_twice_is_one_row(sessions):
    lease = claimed(sessions)
    add_step(sessions, lease, 1, 0.1)
    add_step(sessions, lease, 1, 0.1)
    add_step(sessions, lease, 2, 0.2)
    assert steps(sessions, lease) == [(1, 1, 0.1), (2, 1, 0.2)]
    assert read_job(sessions, lease.job_id).step == 2


def test_a_replayed_step_belongs_to_the_later_attempt(sessions):
    first = claimed(sessions)
    add_step(sessions, first, 1, 0.1)
    add_step(sessions, first, 2, 0.2)
    second = next_attempt(sessions, first)
    add_step(sessions, second, 2, 0.25)
    assert steps(sessions, second) == [(1, 1, 0.1), (2, 2, 0.25)]


def test_a_stale_attempt_adds_no_step(sessions):
    first = claimed(sessions)
    second = next_attempt(sessions, first)
    add_step(sessions, second, 1, 0.2)
    with pytest.raises(LeaseLost):
        add_step(sessions, first, 1, 0.9)
    assert steps(sessions, second) == [(1, 2, 0.2)]


def test_steps_are_read_by_window(sessions):
    lease = claimed(sessions)
    for step in range(1, 6):
        add_step(sessions, lease, step, float(step))
    assert [s for s, _, _ in steps(sessions, lease, from_step=2, to_step=4)] == [2, 3, 4]
    assert [s for s, _, _ in steps(sessions, lease, limit=2)] == [1, 2]
    with sessions() as session:
        newest = progress.newest_steps(session, lease.job_id, limit=2)
    assert [row.step for row in newest] == [5, 4]


def test_evaluations_are_read_by_window(sessions):
    lease = claimed(sessions)
    for step in range(5):
        add_evaluation(sessions, lease, f"step-{step}", step, "mark")
    with sessions() as session:
        found = progress.evaluations(session, lease.job_id, from_step=1, to_step=3)
    assert [row.step for row in found] == [1, 2, 3]


def test_rollouts_of_an_earlier_attempt_at_the_step_are_replaced(sessions):
    first = claimed(sessions)
    report(sessions, first, progress.add_rollouts, 1, [{"index": n, "completion": "old"} for n in range(4)])
    report(sessions, first, progress.add_rollouts, 2, [{"index": 0, "completion": "other step"}])
    second = next_attempt(sessions, first)
    report(sessions, second, progress.add_rollouts, 1, [{"index": n, "completion": "new"} for n in range(2)])
    with sessions() as session:
        rows = progress.rollouts(session, first.job_id, step=1)
        found = [(row.index, row.attempt, row.rollout["completion"]) for row in rows]
        untouched = progress.rollouts(session, first.job_id, step=2)
    assert found == [(0, 2, "new"), (1, 2, "new")]
    assert len(untouched) == 1


def test_the_baseline_of_the_first_attempt_is_kept_and_other_evaluations_are_replaced(sessions):
    first = claimed(sessions)
    add_evaluation(sessions, first, "baseline", 0, "first")
    add_evaluation(sessions, first, "step-2", 2, "first")
    second = next_attempt(sessions, first)
    add_evaluation(sessions, second, "baseline", 0, "second")
    add_evaluation(sessions, second, "step-2", 2, "second")
    with sessions() as session:
        found = {e.name: e.evaluation["mark"] for e in progress.evaluations(session, first.job_id)}
        baseline = progress.evaluation(session, first.job_id, "baseline")
    assert found == {"baseline": "first", "step-2": "second"}
    assert baseline is not None
    assert baseline.attempt == 1


def test_the_evaluation_of_a_checkpoint_is_that_of_its_very_weights(sessions):
    def known(step: int) -> str | None:
        with sessions() as session:
            checkpoint = checkpoints.at_step(session, first.job_id, step)
            assert checkpoint is not None
            record = progress.evaluation_of(session, checkpoint)
            return None if record is None else record.evaluation["mark"]

    first = claimed(sessions)
    add_evaluation(sessions, first, "step-4", 4, "of weights that are lost")
    add_checkpoint(sessions, first, 2)
    add_evaluation(sessions, first, "step-2", 2, "of the saver")
    second = next_attempt(sessions, first)
    report(sessions, second, progress.set_resumed_from, 2)
    add_checkpoint(sessions, second, 4)
    assert (known(2), known(4)) == ("of the saver", None)
    third = next_attempt(sessions, second)
    report(sessions, third, progress.set_resumed_from, 4)
    add_evaluation(sessions, third, "step-4", 4, "of who went on from it")
    assert known(4) == "of who went on from it"


def test_checkpoints_are_tried_newest_first_and_the_later_attempts_before_the_earlier(sessions):
    first = claimed(sessions)
    for step in (2, 4):
        add_checkpoint(sessions, first, step)
    second = next_attempt(sessions, first)
    add_checkpoint(sessions, second, 4)
    assert usable(sessions, second) == [(4, 2), (4, 1), (2, 1)]


def test_a_checkpoint_makes_its_step_durable(sessions):
    lease = claimed(sessions)
    assert read_job(sessions, lease.job_id).durable_step is None
    add_checkpoint(sessions, lease, 2)
    assert read_job(sessions, lease.job_id).durable_step == 2


def test_only_the_newest_best_checkpoint_is_marked_and_the_last_word_may_be_none(sessions):
    def best() -> list[int]:
        with sessions() as session:
            return [c.step for c in checkpoints.usable(session, lease.job_id) if c.is_best]

    lease = claimed(sessions)
    add_checkpoint(sessions, lease, 2, is_best=True)
    add_checkpoint(sessions, lease, 4, is_best=True)
    add_checkpoint(sessions, lease, 6)
    assert best() == [4]
    report(sessions, lease, checkpoints.mark_best, step=6)
    assert best() == [6]
    report(sessions, lease, checkpoints.mark_best, step=0)
    assert best() == []


def test_steps_beyond_the_resume_are_not_the_newest(sessions):
    first = claimed(sessions)
    for step in range(1, 6):
        add_step(sessions, first, step, float(step))
    second = next_attempt(sessions, first)
    report(sessions, second, progress.set_resumed_from, 2)
    add_step(sessions, second, 3, 30.0)
    with sessions() as session:
        newest = progress.newest_steps(session, second.job_id, limit=9)
    assert [(row.step, row.attempt) for row in newest] == [(3, 2), (2, 1), (1, 1)]
    assert read_job(sessions, second.job_id).step == 3


def test_a_checkpoint_that_is_committed_twice_is_one_row(sessions):
    lease = claimed(sessions)
    assert add_checkpoint(sessions, lease, 2)
    assert not add_checkpoint(sessions, lease, 2)
    assert usable(sessions, lease) == [(2, 1)]


def test_a_corrupt_checkpoint_is_skipped_and_no_longer_called_durable(sessions):
    lease = claimed(sessions)
    for step in (2, 4):
        add_checkpoint(sessions, lease, step)
    with sessions() as session:
        newest = next(checkpoints.usable(session, lease.job_id))
    report(sessions, lease, checkpoints.mark_corrupt, newest.id)
    assert usable(sessions, lease) == [(2, 1)]
    assert read_job(sessions, lease.job_id).durable_step == 2
    with sessions() as session:
        assert checkpoints.at_step(session, lease.job_id, 4) is None


def test_when_the_only_checkpoint_is_corrupt_nothing_is_durable(sessions):
    lease = claimed(sessions)
    add_checkpoint(sessions, lease, 2)
    with sessions() as session:
        only = next(checkpoints.usable(session, lease.job_id))
    report(sessions, lease, checkpoints.mark_corrupt, only.id)
    assert read_job(sessions, lease.job_id).durable_step is None


def test_a_page_of_checkpoints_shows_each_step_once_newest_first(sessions):
    first = claimed(sessions)
    for step in (2, 4, 6):
        add_checkpoint(sessions, first, step)
    second = next_attempt(sessions, first)
    add_checkpoint(sessions, second, 4)
    with sessions() as session:
        page = checkpoints.page(session, first.job_id, after=None, limit=2)
        rest = checkpoints.page(session, first.job_id, after=page[-1].id, limit=2)
    assert [(c.step, c.attempt) for c in (*page, *rest)] == [(6, 1), (4, 2), (2, 1)]


def test_an_artifact_of_a_later_attempt_replaces_the_earlier(sessions):
    job_id = queued_job(sessions)
    facts = {"name": "results.json", "size_bytes": 2, "sha256": "0" * 64, "content_type": "application/json"}
    shown = []
    for attempt in (1, 2):
        with sessions.begin() as session:
            key = f"a{attempt}/results.json"
            progress.show_artifact(session, job_id, attempt=attempt, key=key, **facts)
        with sessions() as session:
            shown += progress.artifacts(session, job_id)
            assert progress.artifact(session, job_id, "results.json") is shown[-1]
    assert [(row.key, row.attempt) for row in shown] == [("a1/results.json", 1), ("a2/results.json", 2)]
    assert shown[0].created_at < shown[1].created_at


def test_the_journals_offset_is_kept_for_each_attempt(sessions):
    first = claimed(sessions)
    report(sessions, first, progress.set_journal_offset, 150)
    assert report(sessions, first, progress.journal_offset) == 150
    second = next_attempt(sessions, first)
    assert report(sessions, second, progress.journal_offset) == 0, "a new attempt has a new journal"


def test_a_stage_is_shown_while_the_job_runs(sessions):
    lease = claimed(sessions)
    report(sessions, lease, progress.set_stage, Stage.BASELINE)
    assert read_job(sessions, lease.job_id).stage is Stage.BASELINE
    with sessions.begin() as session:
        leases.finish(session, lease, JobStatus.SUCCEEDED, message="Done.")
    assert read_job(sessions, lease.job_id).stage is None


# Each attempt: where it resumed (None: from the start), and the last step it finished (None: not even one).
@pytest.mark.parametrize(
    ("history", "redone"),
    [
        ([(None, 10)], 0),
        ([(None, 10), (8, 20)], 2),
        ([(None, 10), (8, 9), (8, 20)], 3),
        ([(None, 10), (None, 20)], 10),
        ([(None, 30), (None, None), (25, 100)], 5),
        ([(None, None), (None, 5)], 0),
        ([(None, 30), (25, None), (25, 40)], 5),
    ],
)
def test_redone_steps_are_those_beyond_the_step_that_the_next_attempt_started_from(sessions, history, redone):
    lease = claimed(sessions)
    for number, (resumed_from, last_step) in enumerate(history):
        if number:
            lease = next_attempt(sessions, lease)
        if resumed_from is not None:
            report(sessions, lease, progress.set_resumed_from, resumed_from)
        if last_step is not None:
            add_step(sessions, lease, last_step, 0.5)
    with sessions() as session:
        assert progress.redone_steps(session, lease.job_id) == redone


def test_held_seconds_count_every_attempt_up_to_now(sessions):
    first = claimed(sessions)
    with sessions.begin() as session:
        leases.release(session, first, reason=StatusReason.PREEMPTED, message="Gone.")
    claimed(sessions, first.job_id)
    with sessions() as session:
        earlier = progress.held_seconds(session, first.job_id)
        later = progress.held_seconds(session, first.job_id)
    assert 0 < earlier < later
