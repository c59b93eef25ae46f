"""Ids that sort by time, and the keys under which objects live."""

import re

import pytest

from core import ids, keys
from core.storage.store import check_key, check_prefix

MAKERS = {
    "ftjob": ids.new_job_id,
    "file": ids.new_file_id,
    "rew": ids.new_reward_id,
    "rewver": ids.new_reward_version_id,
    "ftevent": ids.new_event_id,
    "ftckpt": ids.new_checkpoint_id,
    "req": ids.new_request_id,
    "key": ids.new_key_id,
}


@pytest.mark.parametrize(("prefix", "make"), MAKERS.items())
def test_an_id_says_what_it_is_of_and_is_a_uuid_of_version_7(prefix, make):
    assert re.fullmatch(prefix + "-[0-9a-f]{12}7[0-9a-f]{3}[89ab][0-9a-f]{15}", make())


def test_ids_are_unique_and_sort_in_order_of_making():
    made = [ids.new_job_id() for _ in range(5000)]
    assert len(set(made)) == 5000
    assert made == sorted(made)


def test_keys_are_keys_of_the_store():
    job_id = ids.new_job_id()
    check_key(keys.data_file(ids.new_file_id()))
    check_key(keys.artifact(job_id, 3, "adapter/adapter_model.safetensors"))
    check_key(keys.manifest(keys.checkpoint(job_id, 25, 1)))
    check_prefix(keys.checkpoint(job_id, 25, 1))
    check_prefix(keys.job(job_id))


def test_everything_a_job_makes_is_under_its_prefix():
    job_id = ids.new_job_id()
    made = [keys.checkpoint(job_id, 25, 1), keys.artifact(job_id, 1, "results.json")]
    assert all(key.startswith(keys.job(job_id)) for key in made)


def test_no_two_attempts_or_steps_share_a_checkpoints_prefix():
    job_id = ids.new_job_id()
    prefixes = {keys.checkpoint(job_id, step, attempt) for step in range(1, 120) for attempt in range(1, 120)}
    assert len(prefixes) == 119 * 119


@pytest.mark.parametrize(("step", "attempt"), [(1, 1), (25, 3), (99_999_999, 9_999), (123_456_789, 12_345)])
def test_a_key_tells_whose_it_is(step: int, attempt: int):
    job_id, file_id = ids.new_job_id(), ids.new_file_id()
    checkpoint = keys.CheckpointPlace(job_id, step, attempt)
    for name in ("MANIFEST.json", "adapter/adapter_model.safetensors"):
        assert keys.place_of(checkpoint.prefix + name) == checkpoint
    assert checkpoint.prefix == keys.checkpoint(job_id, step, attempt)
    artifacts = keys.ArtifactsPlace(job_id, attempt)
    assert keys.place_of(keys.artifact(job_id, attempt, "adapter/adapter_model.safetensors")) == artifacts
    assert keys.artifact(job_id, attempt, "results.json") == f"{artifacts.prefix}results.json"
    assert keys.data_file_of(keys.data_file(file_id)) == file_id


@pytest.mark.parametrize(
    "key",
    [
        "", "README", "files", "files/", "files/a/b", "jobs/j", "jobs/j/x", "jobs/j/checkpoints/00000004-a0001",
        "jobs/j/checkpoints/00000004-a0001/", "jobs/j/checkpoints/4-a1/x", "jobs/j/checkpoints/000000004-a0001/x",
        "jobs/j/checkpoints/00000004-a00001/x", "jobs/a/b/checkpoints/00000004-a0001/x", "jobs/j/artifacts/a1/x",
        "jobs/j/artifacts/a0001", "x/jobs/j/artifacts/a0001/x",
    ],
)  # fmt: skip
def test_a_key_that_nothing_here_makes_belongs_to_nobody(key: str):
    assert keys.place_of(key) is None
    assert keys.data_file_of(key) is None


def test_checkpoints_sort_by_step():
    job_id = ids.new_job_id()
    prefixes = [keys.checkpoint(job_id, step, 1) for step in (2, 10, 100, 1_000_000)]
    assert prefixes == sorted(prefixes)
