"""Grading tasks: who may take one, whose answer counts, which are told of again, and which are kept."""

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from core.db import grading_tasks, reward_probes, rewards
from core.db.grading_tasks import MAX_ATTEMPTS, Claim
from core.db.models import GradingTask, now
from core.db.reward_probes import Called
from core.db.session import Sessions
from core.grading_tasks import GradingTaskKind, GradingTaskStatus
from core.ids import GradingTaskId, RewardVersionId, TenantId
from core.reward_source import RewardForm
from tests.factories import REWARD_SOURCE, TENANT
from tests.threads import race

DAY_S = 86_400.0
OTHER = TenantId("another")


def added(sessions: Sessions, tenant_id: TenantId = TENANT, **request: Any) -> GradingTaskId:
    asked = {"n": 1, **request}
    with sessions.begin() as session:
        return grading_tasks.add(session, tenant_id=tenant_id, kind=GradingTaskKind.RUN_GRADER, request=asked).id


def claim(
    sessions: Sessions, task_id: GradingTaskId, *, ttl_s: float = 60, most_of_a_tenant: int = 9, most_long: int = 9
) -> Claim | None:
    with sessions.begin() as session:
        return grading_tasks.claim(
            session, task_id, ttl_s=ttl_s, most_of_a_tenant=most_of_a_tenant, most_long=most_long
        )


def taken(sessions: Sessions, task_id: GradingTaskId) -> Claim:
    claimed = claim(sessions, task_id)
    assert claimed is not None
    return claimed


def read(sessions: Sessions, task_id: GradingTaskId) -> GradingTask:
    with sessions() as session:
        task = grading_tasks.get(session, task_id)
    assert task is not None
    return task


def change(sessions: Sessions, task_id: GradingTaskId, **values) -> None:
    with sessions.begin() as session:
        session.execute(update(GradingTask).where(GradingTask.id == task_id).values(**values))


def expire(sessions: Sessions, task_id: GradingTaskId) -> None:
    change(sessions, task_id, lease_expires_at=now() - timedelta(seconds=1))


def finish(sessions: Sessions, claimed: Claim, answer: int) -> bool:
    with sessions.begin() as session:
        return grading_tasks.finish(session, claimed, {"answer": answer})


def due(sessions: Sessions, *, hint_repeat_s: float = 3, limit: int = 100) -> list[GradingTaskId]:
    with sessions.begin() as session:
        return list(grading_tasks.due(session, hint_repeat_s=hint_repeat_s, limit=limit))


def added_version(sessions: Sessions) -> RewardVersionId:
    with sessions.begin() as session:
        reward = rewards.add(session, tenant_id=TENANT, name="exact")
        return rewards.add_version(session, reward.id, source=REWARD_SOURCE, sha256="0" * 64, entry={}).id


def probed(sessions: Sessions, version_id: RewardVersionId, form: RewardForm | None = None) -> GradingTaskId:
    with sessions.begin() as session:
        return reward_probes.add(session, tenant_id=TENANT, called=Called(version_id, form=form), file_id=None).id


def test_a_claim_carries_the_request_and_an_answer_ends_the_task(sessions):
    task_id = added(sessions)
    claimed = taken(sessions, task_id)
    assert (claimed.attempt, claimed.kind, claimed.tenant_id, claimed.request) == (
        1, GradingTaskKind.RUN_GRADER, TENANT, {"n": 1},
    )  # fmt: skip
    assert read(sessions, task_id).status is GradingTaskStatus.RUNNING
    assert finish(sessions, claimed, 4)
    task = read(sessions, task_id)
    assert (task.status, task.answer, task.error, task.lease_expires_at) == (
        GradingTaskStatus.DONE, {"answer": 4}, None, None,
    )  # fmt: skip
    assert task.finished_at is not None


def test_of_workers_that_claim_at_once_one_gets_the_task(sessions):
    task_id = added(sessions)
    claims = race(6, lambda _: claim(sessions, task_id))
    assert [one.attempt for one in claims if one is not None] == [1]


def test_nobody_waits_for_a_task_that_somebody_is_about_to_take(sessions):
    task_id = added(sessions)
    with sessions.begin() as session:
        assert grading_tasks.claim(session, task_id, ttl_s=60, most_of_a_tenant=9, most_long=9) is not None
        assert claim(sessions, task_id) is None


def test_a_task_that_has_ended_or_is_not_there_is_never_taken(sessions):
    task_id = added(sessions)
    finish(sessions, taken(sessions, task_id), 4)
    assert claim(sessions, task_id) is None
    assert claim(sessions, GradingTaskId("gtask-none")) is None


def test_a_lost_workers_task_is_taken_again_and_only_the_later_answer_counts(sessions):
    task_id = added(sessions)
    first = taken(sessions, task_id)
    assert claim(sessions, task_id) is None
    expire(sessions, task_id)
    second = taken(sessions, task_id)
    assert second.attempt == 2
    assert not finish(sessions, first, 1)
    assert finish(sessions, second, 2)
    assert not finish(sessions, second, 3)
    assert read(sessions, task_id).answer == {"answer": 2}


def test_an_answer_that_comes_after_the_lease_counts_while_nobody_else_has_begun(sessions):
    task_id = added(sessions)
    claimed = taken(sessions, task_id)
    expire(sessions, task_id)
    assert finish(sessions, claimed, 4)


def test_a_task_that_has_lost_three_workers_fails_for_good(sessions):
    task_id = added(sessions)
    for _ in range(MAX_ATTEMPTS):
        taken(sessions, task_id)
        expire(sessions, task_id)
    assert claim(sessions, task_id) is None
    task = read(sessions, task_id)
    assert (task.status, task.attempt, task.error["code"]) == (GradingTaskStatus.FAILED, 3, "grading_worker_lost")
    assert task.error["fix"]


def test_a_failure_keeps_what_went_wrong(sessions):
    task_id = added(sessions)
    claimed = taken(sessions, task_id)
    with sessions.begin() as session:
        assert grading_tasks.fail(session, claimed, {"code": "no", "message": "No.", "param": None, "fix": None})
    task = read(sessions, task_id)
    assert (task.status, task.answer, task.error["code"]) == (GradingTaskStatus.FAILED, None, "no")


def withdraw(sessions: Sessions, *task_ids: GradingTaskId) -> None:
    with sessions.begin() as session:
        for task_id in task_ids:
            grading_tasks.withdraw(session, task_id)


def test_what_nobody_waits_for_is_taken_back_unless_it_has_begun(sessions):
    waiting, running = added(sessions), added(sessions)
    claimed = taken(sessions, running)
    withdraw(sessions, waiting, running)
    assert claim(sessions, waiting) is None
    assert read(sessions, waiting).error["code"] == "withdrawn"
    assert finish(sessions, claimed, 4)
    task = read(sessions, running)
    assert (task.status, task.answer, task.error) == (GradingTaskStatus.DONE, {"answer": 4}, None)


def test_what_nobody_waits_for_is_not_begun_again_when_its_worker_is_lost(sessions):
    task_id = added(sessions)
    taken(sessions, task_id)
    withdraw(sessions, task_id)
    expire(sessions, task_id)
    assert claim(sessions, task_id) is None
    task = read(sessions, task_id)
    assert (task.status, task.attempt, task.error["code"]) == (GradingTaskStatus.FAILED, 1, "withdrawn")


@pytest.mark.parametrize("end", ["finish", "fail", "withdraw", "withdraw_running", "lost"])
def test_source_and_credentials_do_not_outlive_the_task(sessions, end):
    task_id = added(sessions, sources={"judge": '{"secret": "s"}'})
    if end == "withdraw":
        withdraw(sessions, task_id)
        assert read(sessions, task_id).request == {"n": 1}
        return
    claimed = taken(sessions, task_id)
    assert claimed.request["sources"]
    with sessions.begin() as session:
        if end == "finish":
            grading_tasks.finish(session, claimed, {})
        elif end == "fail":
            grading_tasks.fail(session, claimed, {})
        elif end == "withdraw_running":
            grading_tasks.withdraw(session, task_id)
    if end == "lost":
        change(sessions, task_id, attempt=MAX_ATTEMPTS)
        expire(sessions, task_id)
        assert claim(sessions, task_id) is None
    assert read(sessions, task_id).request == {"n": 1}


def test_a_tenant_gives_way_to_one_of_whom_fewer_tasks_run(sessions):
    first, second, third = (added(sessions) for _ in range(3))
    other = added(sessions, OTHER)
    assert claim(sessions, first, most_of_a_tenant=1) is not None
    assert claim(sessions, second, most_of_a_tenant=1) is None
    assert due(sessions) == [second], "it is told of again at once"
    assert claim(sessions, other, most_of_a_tenant=1) is not None
    assert claim(sessions, third, most_of_a_tenant=1) is not None, "nobody else waits"


def test_tenants_who_both_have_their_share_do_not_wait_for_each_other(sessions):
    ours, theirs = ([added(sessions, tenant) for _ in range(2)] for tenant in (TENANT, OTHER))
    for mine, yours in zip(ours, theirs, strict=True):
        assert claim(sessions, mine, most_of_a_tenant=1) is not None
        assert claim(sessions, yours, most_of_a_tenant=1) is not None


def test_whoever_adds_a_task_sends_the_first_hint_and_the_dispatcher_the_later_ones(sessions):
    task_id = added(sessions)
    assert due(sessions) == []
    change(sessions, task_id, hinted_at=now() - timedelta(seconds=4))
    assert due(sessions) == [task_id]
    assert due(sessions) == []


def test_only_tasks_that_a_worker_could_take_are_due(sessions):
    lost, held, done = (added(sessions) for _ in range(3))
    for task_id in (lost, held, done):
        claimed = taken(sessions, task_id)
        change(sessions, task_id, hinted_at=None)
    finish(sessions, claimed, 4)
    expire(sessions, lost)
    assert due(sessions) == [lost]


def test_old_answers_are_forgotten_and_reports_are_kept(sessions):
    old, young, waiting = (added(sessions) for _ in range(3))
    report = probed(sessions, added_version(sessions))
    for task_id in (old, young, report):
        finish(sessions, taken(sessions, task_id), 4)
    for task_id in (old, report):
        change(sessions, task_id, finished_at=now() - timedelta(seconds=DAY_S + 1))
    with sessions.begin() as session:
        assert grading_tasks.forget(session, older_than_s=DAY_S) == 1
        assert grading_tasks.get(session, old) is None
        assert all(grading_tasks.get(session, task_id) for task_id in (young, waiting, report))


def test_of_probes_that_failed_only_the_newest_is_kept(sessions):
    version_id = added_version(sessions)
    done, old, newest, in_form = (probed(sessions, version_id, form) for form in (None, None, None, RewardForm.TRL))
    finish(sessions, taken(sessions, done), 4)
    for task_id in (old, newest, in_form):
        with sessions.begin() as session:
            grading_tasks.fail(
                session, grading_tasks.claim(session, task_id, ttl_s=9, most_of_a_tenant=9, most_long=9), {}
            )
    for task_id in (done, old, newest, in_form):
        change(sessions, task_id, finished_at=now() - timedelta(seconds=DAY_S + 1))
    with sessions.begin() as session:
        assert reward_probes.forget_failed(session, older_than_s=DAY_S) == 1
        assert grading_tasks.forget(session, older_than_s=DAY_S) == 1
        assert grading_tasks.get(session, old) is None


def test_a_report_is_of_a_version_as_it_was_called(sessions):
    version_id = added_version(sessions)
    plain, in_form = probed(sessions, version_id), probed(sessions, version_id, RewardForm.TRL)
    finish(sessions, taken(sessions, in_form), 4)
    with sessions() as session:
        assert reward_probes.find(session, Called(version_id), None).id == plain
        assert reward_probes.find(session, Called(version_id, form=RewardForm.TRL), None).id == in_form
        assert reward_probes.newest_answer(session, Called(version_id)) is None
        assert reward_probes.newest_answer(session, Called(version_id, form=RewardForm.TRL)) == {"answer": 4}


def test_the_newest_probe_that_has_ended_speaks_for_a_version(sessions):
    version_id = added_version(sessions)
    first, second, third = (probed(sessions, version_id) for _ in range(3))
    finish(sessions, taken(sessions, first), 1)
    finish(sessions, taken(sessions, second), 2)
    with sessions() as session:
        newest = reward_probes.newest(session, Called(version_id))
        found = reward_probes.find(session, Called(version_id), None)
        assert newest is not None
        assert found is not None
        assert newest.id == found.id == third
        assert reward_probes.newest_answer(session, Called(version_id)) == {"answer": 2}


@pytest.mark.parametrize("status", GradingTaskStatus)
def test_a_status_is_final_when_nobody_will_change_it(status):
    assert status.is_final is (status in {"done", "failed"})


def test_claims_at_the_same_time_do_not_take_a_tenant_over_its_share(sessions):
    added(sessions, OTHER)
    mine = [added(sessions) for _ in range(6)]
    claims = race(len(mine), lambda place: claim(sessions, mine[place], most_of_a_tenant=1))
    assert sum(one is not None for one in claims) == 1


def test_probes_and_rescorings_leave_a_place_for_a_graders_trial(sessions):
    with sessions.begin() as session:
        kinds = [GradingTaskKind.PROBE_REWARD, GradingTaskKind.RESCORE, GradingTaskKind.PROBE_REWARD]
        long = [grading_tasks.add(session, tenant_id=TENANT, kind=kind, request={}).id for kind in kinds]
    first = claim(sessions, long[0], most_long=2)
    assert first is not None
    assert claim(sessions, long[1], most_long=2) is not None
    assert claim(sessions, long[2], most_long=2) is None
    assert due(sessions) == [long[2]], "told of again at once"
    assert claim(sessions, added(sessions), most_long=2) is not None
    finish(sessions, first, 1)
    assert claim(sessions, long[2], most_long=2) is not None
