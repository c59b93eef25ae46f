"""Reward functions and their immutable versions."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from core.db.models import Reward, RewardVersion
from core.ids import RewardId, RewardVersionId, TenantId, new_reward_id, new_reward_version_id


def add(session: Session, *, tenant_id: TenantId, name: str) -> Reward:
    reward = Reward(id=new_reward_id(), tenant_id=tenant_id, name=name)
    session.add(reward)
    session.flush()
    session.refresh(reward)
    return reward


def add_version(
    session: Session, reward_id: RewardId, *, source: str, sha256: str, entry: dict[str, Any]
) -> RewardVersion:
    """The next version. The reward's row is locked, so that versions have no gaps and no doubles."""
    hold(session, reward_id)
    last = session.scalar(select(func.max(RewardVersion.version)).where(RewardVersion.reward_id == reward_id)) or 0
    version = RewardVersion(
        id=new_reward_version_id(),
        reward_id=reward_id,
        version=last + 1,
        source=source,
        sha256=sha256,
        entry=entry,
    )
    session.add(version)
    session.flush()
    session.refresh(version)
    return version


def hold(session: Session, reward_id: RewardId) -> None:
    """Nobody else adds a version until the transaction ends."""
    session.scalar(select(Reward.id).where(Reward.id == reward_id).with_for_update())


def get_owned(session: Session, tenant_id: TenantId, reward_id: RewardId) -> Reward | None:
    return session.scalar(select(Reward).where(Reward.id == reward_id, Reward.tenant_id == tenant_id))


def page(session: Session, tenant_id: TenantId, *, after: RewardId | None, limit: int) -> Sequence[Reward]:
    """Newest first, by keyset on the time-ordered id."""
    query = select(Reward).where(Reward.tenant_id == tenant_id).order_by(Reward.id.desc()).limit(limit)
    if after is not None:
        query = query.where(Reward.id < after)
    return session.scalars(query).all()


def versions(session: Session, reward_id: RewardId) -> Sequence[RewardVersion]:
    """Newest first."""
    query = select(RewardVersion).where(RewardVersion.reward_id == reward_id)
    return session.scalars(query.order_by(RewardVersion.version.desc())).all()


def version(session: Session, version_id: RewardVersionId) -> RewardVersion | None:
    return session.get(RewardVersion, version_id)


def newest(session: Session, reward_id: RewardId, *, number: int | None = None) -> RewardVersion | None:
    """The newest version, or version `number`."""
    query = select(RewardVersion).where(RewardVersion.reward_id == reward_id)
    if number is not None:
        query = query.where(RewardVersion.version == number)
    return session.scalar(query.order_by(RewardVersion.version.desc()).limit(1))


def newest_of(session: Session, reward_ids: Sequence[RewardId]) -> dict[RewardId, RewardVersion]:
    """The newest version of each, in one query."""
    last = select(RewardVersion.reward_id, func.max(RewardVersion.version)).group_by(RewardVersion.reward_id)
    is_last = tuple_(RewardVersion.reward_id, RewardVersion.version).in_(last)
    found = session.scalars(select(RewardVersion).where(RewardVersion.reward_id.in_(reward_ids), is_last))
    return {version.reward_id: version for version in found}
