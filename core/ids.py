"""Identifiers: a prefix that says what a thing is, and a UUIDv7 (RFC 9562) that sorts by time."""

from typing import NewType

import uuid_utils

JobId = NewType("JobId", str)
FileId = NewType("FileId", str)
RewardId = NewType("RewardId", str)
RewardVersionId = NewType("RewardVersionId", str)
EventId = NewType("EventId", str)
CheckpointId = NewType("CheckpointId", str)
GradingTaskId = NewType("GradingTaskId", str)
TenantId = NewType("TenantId", str)


def new_job_id() -> JobId:
    return JobId(_new("ftjob"))


def new_signal_probe_id() -> JobId:
    """A probe is a job of another kind."""
    return JobId(_new("sigprobe"))


def new_file_id() -> FileId:
    return FileId(_new("file"))


def new_reward_id() -> RewardId:
    return RewardId(_new("rew"))


def new_reward_version_id() -> RewardVersionId:
    return RewardVersionId(_new("rewver"))


def new_event_id() -> EventId:
    return EventId(_new("ftevent"))


def new_checkpoint_id() -> CheckpointId:
    return CheckpointId(_new("ftckpt"))


def new_grading_task_id() -> GradingTaskId:
    return GradingTaskId(_new("gtask"))


def new_request_id() -> str:
    return _new("req")


def new_key_id() -> str:
    return _new("key")


def _new(prefix: str) -> str:
    return f"{prefix}-{uuid_utils.uuid7().hex}"
