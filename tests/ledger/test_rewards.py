"""Reward functions: immutable versions, numbered without gaps."""

from core.db import rewards
from core.ids import RewardId, TenantId
from tests.factories import TENANT
from tests.threads import race


def add_reward(sessions, name: str = "exact", tenant_id: TenantId = TENANT) -> RewardId:
    with sessions.begin() as session:
        return rewards.add(session, tenant_id=tenant_id, name=name).id


def add_version(sessions, reward_id: RewardId, source: str = "x"):
    with sessions.begin() as session:
        return rewards.add_version(session, reward_id, source=source, sha256="0" * 64, entry={"name": "reward"})


def test_versions_added_by_eight_threads_have_no_gap(sessions):
    reward_id = add_reward(sessions)
    made = race(8, lambda _: [add_version(sessions, reward_id).version for _ in range(5)])
    assert sorted(number for numbers in made for number in numbers) == list(range(1, 41))


def test_a_version_keeps_its_source_when_a_newer_one_comes(sessions):
    reward_id = add_reward(sessions)
    first, second = (add_version(sessions, reward_id, source) for source in ("one", "two"))
    with sessions() as session:
        assert [v.source for v in rewards.versions(session, reward_id)] == ["two", "one"]
        newest, old = rewards.newest(session, reward_id), rewards.newest(session, reward_id, number=1)
        assert newest is not None
        assert old is not None
        assert (newest.id, old.id) == (second.id, first.id)
        assert rewards.version(session, first.id) is old


def test_versions_are_counted_for_each_reward(sessions):
    one, other = add_reward(sessions), add_reward(sessions, "other")
    assert [add_version(sessions, reward_id).version for reward_id in (one, other, one)] == [1, 1, 2]


def test_a_reward_is_its_tenants_alone(sessions):
    reward_id = add_reward(sessions)
    with sessions() as session:
        assert rewards.get_owned(session, TENANT, reward_id) is not None
        assert rewards.get_owned(session, TenantId("tenant-b"), reward_id) is None
        assert rewards.page(session, TenantId("tenant-b"), after=None, limit=5) == []


def test_pages_are_newest_first(sessions):
    first, second, third = (add_reward(sessions, name) for name in "abc")
    with sessions() as session:
        assert [r.id for r in rewards.page(session, TENANT, after=None, limit=2)] == [third, second]
        assert [r.id for r in rewards.page(session, TENANT, after=second, limit=2)] == [first]
