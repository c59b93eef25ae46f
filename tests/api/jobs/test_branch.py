"""A job that begins from a checkpoint of another: found, whole, the caller's; inherited, locked and spared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.main import create_app
from app.models.names import fine_tuned_checkpoint, fine_tuned_model
from core.db import checkpoints
from core.db.session import Sessions
from core.settings import Settings
from core.storage.store import ObjectStore
from tests.api.jobs.runs import ADAPTER, Run
from tests.model_folders import write_model
from tests.threads import race

JOBS = "/v1/fine_tuning/jobs"
GRADER = {"type": "python", "name": "g", "source": "def grade(sample, item):\n    return 1.0\n"}
Body = dict[str, Any]
Submit = Callable[..., Body]


@pytest.fixture
def parent(sessions: Sessions, store: ObjectStore, submit: Submit, body: Body) -> Run:
    """A running job with an adapter of its own and two checkpoints."""
    method = {**body["method"]["grpo"], "adapter": {"r": 8, "alpha": 24, "target_modules": ["q_proj", "v_proj"]}}
    run = Run.claim(sessions, store, submit(suffix="bio", method={"type": "grpo", "grpo": method})["id"])
    run.checkpoint(1, ADAPTER)
    run.checkpoint(2, ADAPTER)
    return run


def checkpoint_of(run: Run, step: int, suffix: str | None = "bio") -> str:
    return fine_tuned_checkpoint("podium/tiny", suffix, run.job_id, step)


def refusal(client: TestClient, body: Body, *, status: int) -> Body:
    """The same error from a dry run and from a create."""
    dry, real = (client.post(JOBS, params={"dry_run": dry}, json=body) for dry in (True, False))
    assert (dry.status_code, real.status_code) == (status, status), real.text
    error, other = dry.json()["error"], real.json()["error"]
    assert {**error, "request_id": ""} == {**other, "request_id": ""}
    assert error["fix"]
    return dict(error)


def test_a_checkpoint_resolves_to_its_base_model_and_its_adapter(client: TestClient, submit: Submit, parent: Run):
    listed = client.get(f"{parent.path}/checkpoints").json()["data"][1]
    job = submit(model=listed["fine_tuned_model_checkpoint"])
    old = client.get(parent.path).json()["spec"]
    assert (job["model"], job["spec"]["model"]) == ("podium/tiny", old["model"])
    assert job["spec"]["adapter"] == old["adapter"]
    start = job["spec"]["start_from"]
    assert (start["job_id"], start["checkpoint_id"], start["step"]) == (parent.job_id, listed["id"], 1)
    assert start["manifest_sha256"] == listed["manifest_sha256"]
    expected = {"fine_tuning_job_id": parent.job_id, "checkpoint_id": listed["id"], "step_number": 1}
    assert job["branched_from"] == expected
    assert client.get(f"{JOBS}/{job['id']}").json()["branched_from"] == expected
    assert client.get(parent.path).json()["branched_from"] is None


def test_a_trained_model_means_the_last_checkpoint_of_its_job(client: TestClient, submit: Submit, parent: Run):
    parent.succeed()
    name = client.get(parent.path).json()["fine_tuned_model"]
    assert submit(model=name)["branched_from"]["step_number"] == 2


def steps_after_retention(client: TestClient, parent: Run) -> list[int]:
    parent.collect(keep=1)
    return [one["step_number"] for one in client.get(f"{parent.path}/checkpoints").json()["data"]]


def test_retention_spares_what_a_branch_begins_from_until_it_has_two_checkpoints_of_its_own(
    client: TestClient, sessions: Sessions, store: ObjectStore, submit: Submit, parent: Run
):
    branch = Run.claim(sessions, store, submit(model=checkpoint_of(parent, 1))["id"])
    assert steps_after_retention(client, parent) == [2, 1]
    branch.checkpoint(5, ADAPTER)
    assert steps_after_retention(client, parent) == [2, 1]
    branch.checkpoint(10, ADAPTER)
    assert steps_after_retention(client, parent) == [2]


def test_retention_spares_it_until_the_branch_has_ended(client: TestClient, submit: Submit, parent: Run):
    first, second = (submit(model=checkpoint_of(parent, 1)) for _ in range(2))
    client.post(f"{JOBS}/{first['id']}/cancel")
    assert steps_after_retention(client, parent) == [2, 1], "the other branch needs it"
    client.post(f"{JOBS}/{second['id']}/cancel")
    assert steps_after_retention(client, parent) == [2]


def test_a_branch_that_trains_the_whole_model_needs_it_to_the_end(
    client: TestClient, sessions: Sessions, store: ObjectStore, submit: Submit, body: Body
):
    body["method"]["grpo"]["adapter"] = {"method": "full"}
    parent = Run.claim(sessions, store, submit()["id"])
    for step in (1, 2):
        parent.checkpoint(step, ADAPTER)
    branch = Run.claim(sessions, store, submit(model=checkpoint_of(parent, 1, suffix=None))["id"])
    branch.checkpoint(5, ADAPTER)
    assert steps_after_retention(client, parent) == [2, 1]
    branch.succeed()
    assert steps_after_retention(client, parent) == [2]


def test_a_pin_of_a_person_outlives_the_branch_and_an_unpin_takes_nothing_from_it(
    client: TestClient, submit: Submit, parent: Run
):
    job = submit(model=checkpoint_of(parent, 1))
    assert client.post(f"{parent.path}/checkpoints/1/unpin").json()["pinned"] is False
    assert steps_after_retention(client, parent) == [2, 1]
    client.post(f"{parent.path}/checkpoints/1/pin")
    client.post(f"{JOBS}/{job['id']}/cancel")
    assert steps_after_retention(client, parent) == [2, 1]


def test_a_preview_of_a_branch_keeps_nothing(client: TestClient, body: Body, parent: Run):
    branch = {**body, "model": checkpoint_of(parent, 1)}
    assert client.post(JOBS, params={"dry_run": True}, json=branch).status_code == 200
    assert steps_after_retention(client, parent) == [2]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("method", "full", "`lora`"),
        ("r", 16, "`8`"),
        ("alpha", 32, "`24`"),
        ("target_modules", "all-linear", "['q_proj', 'v_proj']"),
    ],
)
def test_an_adapter_that_differs_is_refused_with_the_value_to_use(
    client: TestClient, body: Body, parent: Run, name: str, value: Any, shown: str
):
    body["method"]["grpo"]["adapter"] = {name: value}
    error = refusal(client, {**body, "model": checkpoint_of(parent, 1)}, status=422)
    assert (error["code"], error["param"]) == ("adapter_differs", f"method.grpo.adapter.{name}")
    assert shown in error["fix"]


def test_every_difference_is_named_at_once(client: TestClient, body: Body, parent: Run):
    body["method"]["grpo"]["adapter"] = {"r": 4, "alpha": 4, "dropout": 0.5}
    error = refusal(client, {**body, "model": checkpoint_of(parent, 1)}, status=422)
    assert [problem["field"].rpartition(".")[2] for problem in error["errors"]] == ["r", "alpha"]


def test_what_is_the_same_or_not_of_the_weights_may_be_said(submit: Submit, body: Body, parent: Run):
    same = {"method": "lora", "r": 8, "alpha": 24, "target_modules": ["v_proj", "q_proj"], "dropout": 0.1}
    body["method"]["grpo"]["adapter"] = same
    assert submit(model=checkpoint_of(parent, 1))["spec"]["adapter"] == same


def test_a_branch_of_a_whole_model_is_whole(
    client: TestClient, sessions: Sessions, store: ObjectStore, submit: Submit, body: Body
):
    body["method"]["grpo"]["adapter"] = {"method": "full"}
    run = Run.claim(sessions, store, submit()["id"])
    run.checkpoint(1, ADAPTER)
    model = checkpoint_of(run, 1, suffix=None)
    body["method"]["grpo"]["adapter"] = {"method": "lora"}
    assert refusal(client, {**body, "model": model}, status=422)["param"] == "method.grpo.adapter.method"
    del body["method"]["grpo"]["adapter"]
    spec = submit(model=model)["spec"]
    assert (spec["adapter"]["method"], spec["hyperparameters"]["learning_rate"]) == ("full", 1e-6)
    hyperparameters = {"learning_rate_multiplier": 2}
    method = {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": hyperparameters}}
    spec = submit(model=model, method=method)["spec"]
    assert (spec["adapter"]["method"], spec["hyperparameters"]["learning_rate"]) == ("full", 2e-6)


def test_a_checkpoint_that_is_not_there_is_not_found(client: TestClient, body: Body, parent: Run):
    names = [
        checkpoint_of(parent, 9),
        checkpoint_of(parent, 1, suffix="other"),
        checkpoint_of(parent, 1).replace("podium/tiny", "podium/huge"),
        checkpoint_of(parent, 1).replace("ftjob-", "ftjob-f"),
        fine_tuned_model("podium/tiny", "bio", parent.job_id),  # it has not finished
    ]
    for model in names:
        error = refusal(client, {**body, "model": model}, status=404)
        assert (error["code"], error["param"]) == ("checkpoint_not_found", "model")


def test_a_checkpoint_of_another_tenant_is_not_there(other_tenant: TestClient, body: Body, parent: Run):
    response = other_tenant.post(JOBS, params={"dry_run": True}, json={**body, "model": checkpoint_of(parent, 1)})
    found = {(problem["field"], problem["code"]) for problem in response.json()["error"]["errors"]}
    assert ("model", "checkpoint_not_found") in found


def test_a_checkpoint_that_retention_gave_up_is_gone(client: TestClient, body: Body, parent: Run):
    parent.collect(keep=1)
    error = refusal(client, {**body, "model": checkpoint_of(parent, 1)}, status=409)
    assert (error["code"], error["param"]) == ("checkpoint_gone", "model")
    assert "retention" in error["message"]


def test_a_damaged_last_checkpoint_is_gone_and_no_older_one_is_taken_instead(
    client: TestClient, body: Body, parent: Run
):
    parent.corrupt(2)
    parent.succeed()
    name = client.get(parent.path).json()["fine_tuned_model"]
    error = refusal(client, {**body, "model": name}, status=409)
    assert error["code"] == "checkpoint_gone"
    assert "damaged" in error["message"]


def test_of_two_attempts_at_a_step_the_whole_one_is_taken(client: TestClient, submit: Submit, parent: Run):
    again = parent.again()
    again.resume_from(1)
    again.checkpoint(2, ADAPTER)
    again.corrupt(2)
    start = submit(model=checkpoint_of(parent, 2))["spec"]["start_from"]
    assert start["prefix"].endswith("a0001/")


def test_problems_of_the_checkpoint_come_with_all_others(client: TestClient, body: Body, parent: Run):
    error = refusal(client, {**body, "model": checkpoint_of(parent, 9), "training_file": "file-0"}, status=422)
    assert {problem["code"] for problem in error["errors"]} == {"checkpoint_not_found", "file_not_found"}


def test_a_checkpoint_given_up_between_check_and_create_is_gone(
    client: TestClient, body: Body, parent: Run, monkeypatch: pytest.MonkeyPatch
):
    find = checkpoints.newest

    def find_and_lose(*arguments: Any, **named: Any) -> Any:
        found = find(*arguments, **named)
        parent.collect(keep=1)
        return found

    monkeypatch.setattr(checkpoints, "newest", find_and_lose)
    response = client.post(JOBS, json={**body, "model": checkpoint_of(parent, 1)})
    assert (response.status_code, response.json()["error"]["code"]) == (409, "checkpoint_gone")
    assert len(client.get(JOBS).json()["data"]) == 1


def test_branches_from_one_checkpoint_at_the_same_moment_all_come_to_be(client: TestClient, body: Body, parent: Run):
    branch = {**body, "model": checkpoint_of(parent, 1)}
    assert race(4, lambda _: client.post(JOBS, json=branch).status_code) == [201] * 4


def test_a_base_model_that_has_changed_cannot_carry_the_checkpoint(
    client: TestClient, settings: Settings, body: Body, parent: Run, tmp_path: Path
):
    changed = settings.model_copy(update={"models": {"podium/tiny": write_model(tmp_path / "new", weights=b"new")}})
    with TestClient(create_app(changed), headers=client.headers) as later:
        error = refusal(later, {**body, "model": checkpoint_of(parent, 1)}, status=404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "podium/tiny@" in error["fix"]
