"""The reproduce bundle: all that a job was, the same bytes every time, without anything secret."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.bundle import Bundle
from core.db.session import Sessions
from core.storage.store import ObjectStore
from tests.api.forms import REWARD
from tests.api.jobs.conftest import rows
from tests.api.jobs.runs import ADAPTER, Run
from tests.samples import results_document
from tests.unit.test_verdict import RIGHT, WRONG, evaluation

Submit = Callable[..., dict[str, Any]]
SECRET = "whsec_" + "c2VjcmV0" * 5
HTTP = {"builtin": "http", "url": "https://g.example/", "secret": SECRET, "headers": {"Authorization": "Bearer hush"}}


@pytest.fixture
def ended(run: Run) -> Run:
    """A job that took two steps, and succeeded."""
    run.evaluate("baseline", evaluation([WRONG] * 8))
    run.step(1, reward=0.25, step_time=3.0)
    run.step(2, reward=0.5, step_time=4.0)
    run.evaluate("final", evaluation([RIGHT] * 8, step=2))
    run.checkpoint(2, ADAPTER)
    run.succeed(json.dumps(results_document()).encode())
    return run


def unpacked(client: TestClient, run: Run, **query: str) -> dict[str, bytes]:
    response = client.get(f"{run.path}/bundle", params=query)
    assert response.status_code == 200, response.text
    with tarfile.open(fileobj=io.BytesIO(response.content)) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def bundle_of(files: dict[str, bytes]) -> Bundle:
    return Bundle.model_validate_json(files["bundle.json"])


def lines(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


def test_the_archive_holds_all_that_the_job_was(client: TestClient, ended: Run) -> None:
    files = unpacked(client, ended)
    assert list(files) == [
        "bundle.json",
        "results.json",
        "metrics.jsonl",
        "events.jsonl",
        "rewards/exact.py",
        "evaluations/baseline.json",
        "evaluations/final.json",
        "data/training.jsonl",
        "data/held_out.jsonl",
    ]
    assert files["rewards/exact.py"].decode() == REWARD
    assert files["data/training.jsonl"] == rows(20)
    assert files["data/held_out.jsonl"] == rows(8, first=100)
    assert json.loads(files["results.json"]) == results_document()
    assert [(line["step"], line["metrics"]["reward"]) for line in lines(files["metrics.jsonl"])] == [
        (1, 0.25),
        (2, 0.5),
    ]
    assert [line["seq"] for line in lines(files["events.jsonl"])] == list(
        range(1, len(lines(files["events.jsonl"])) + 1)
    )
    assert len(json.loads(files["evaluations/final.json"])["tasks"]) == 8


def test_every_member_is_named_with_its_size_and_digest(client: TestClient, ended: Run) -> None:
    files = unpacked(client, ended)
    named = [(member.name, member.size_bytes, member.sha256) for member in bundle_of(files).members]
    del files["bundle.json"]
    assert named == [(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()]


def test_its_facts_are_those_of_the_job(client: TestClient, ended: Run) -> None:
    bundle = bundle_of(unpacked(client, ended))
    assert (bundle.job.id, bundle.job.status, bundle.job.step) == (ended.job_id, "succeeded", 2)
    assert bundle.spec == ended.lease.spec
    assert bundle.training.sha256 == hashlib.sha256(rows(20)).hexdigest()
    assert bundle.rewards[0].source_sha256 == hashlib.sha256(REWARD.encode()).hexdigest()
    assert bundle.environment is not None
    assert bundle.environment.device == "cpu"
    assert bundle.adapter_sha256 == "0" * 64
    assert [attempt.ended for attempt in bundle.attempts] == ["succeeded"]


def test_the_same_job_makes_the_same_bytes(client: TestClient, ended: Run) -> None:
    first, second = (client.get(f"{ended.path}/bundle") for _ in range(2))
    assert first.content == second.content
    assert first.headers["etag"] == second.headers["etag"]
    head = client.head(f"{ended.path}/bundle")
    assert head.headers["content-length"] == str(len(first.content))
    part = client.get(f"{ended.path}/bundle", headers={"Range": "bytes=100-2999"})
    assert (part.status_code, part.content) == (206, first.content[100:3000])


def test_the_data_may_be_left_out_and_its_digests_stay(client: TestClient, ended: Run) -> None:
    files = unpacked(client, ended, data="false")
    assert not [name for name in files if name.startswith("data/")]
    training = bundle_of(files).training
    assert (training.member, training.sha256) == (None, hashlib.sha256(rows(20)).hexdigest())


def test_data_that_was_deleted_is_left_out(client: TestClient, ended: Run) -> None:
    assert client.delete(f"/v1/files/{ended.lease.spec.training.file_id}").status_code == 200
    files = unpacked(client, ended)
    assert "data/training.jsonl" not in files
    assert "data/held_out.jsonl" in files


def test_a_job_that_has_only_begun_has_a_bundle(client: TestClient, run: Run) -> None:
    run.step(1, reward=0.25)
    files = unpacked(client, run)
    bundle = bundle_of(files)
    assert (bundle.job.status, bundle.environment, bundle.adapter_sha256) == ("running", None, None)
    assert "results.json" not in files
    assert len(lines(files["metrics.jsonl"])) == 1


def test_steps_that_are_done_again_are_left_out(client: TestClient, run: Run) -> None:
    run.step(1, reward=0.25)
    run.step(2, reward=0.5)
    again = run.again()
    again.resume_from(1)
    assert [line["step"] for line in lines(unpacked(client, again)["metrics.jsonl"])] == [1]


def test_results_of_another_version_go_along_as_they_are(client: TestClient, run: Run) -> None:
    run.succeed(b'{"schema_version": 99}')
    files = unpacked(client, run)
    assert files["results.json"] == b'{"schema_version": 99}'
    assert bundle_of(files).environment is None


def test_credentials_are_never_in_it(
    client: TestClient, submit: Submit, sessions: Sessions, store: ObjectStore
) -> None:
    job = submit(method={"type": "grpo", "grpo": {"rewards": [HTTP]}})
    run = Run.claim(sessions, store, job["id"])
    archive = client.get(f"{run.path}/bundle").content
    assert SECRET.encode() not in archive
    assert b"hush" not in archive
    (reward,) = bundle_of(unpacked(client, run)).rewards
    assert (reward.form, reward.member) == ("builtin", None)
    assert len(reward.credentials_sha256 or "") == 64


def test_source_that_came_inside_the_body_is_in_it(
    client: TestClient, submit: Submit, sessions: Sessions, store: ObjectStore
) -> None:
    source = "def grade(sample, item):\n    return 1.0\n"
    grader = {"type": "python", "name": "always", "source": source}
    job = submit(method={"type": "reinforcement", "reinforcement": {"grader": grader}})
    files = unpacked(client, Run.claim(sessions, store, job["id"]))
    assert files["rewards/always.py"].decode() == source


def test_a_branch_names_the_checkpoint_that_it_began_with(
    client: TestClient, ended: Run, submit: Submit, sessions: Sessions, store: ObjectStore
) -> None:
    name = client.get(f"{ended.path}/checkpoints").json()["data"][0]["fine_tuned_model_checkpoint"]
    branch = Run.claim(sessions, store, submit(model=name)["id"])
    assert bundle_of(unpacked(client, branch)).start_model == name


def test_the_bundle_is_the_owners_alone(client: TestClient, other_tenant: TestClient, ended: Run) -> None:
    assert client.get(f"{ended.path}/bundle").status_code == 200
    response = other_tenant.get(f"{ended.path}/bundle")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")
