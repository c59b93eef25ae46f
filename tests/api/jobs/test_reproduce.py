"""The body that `podium reproduce` sends resolves to the spec that it was made of, whatever the job was."""

import io
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cli.reproduction.rerun import Uploads, create_body
from core.builtin_rewards.catalogue import BUILTINS
from core.builtin_rewards.outside import Credentials
from core.bundle import Bundle
from core.db.session import Sessions
from core.spec import PinnedReward
from core.storage.store import ObjectStore
from tests.api.forms import upload
from tests.api.jobs.conftest import rows
from tests.api.jobs.runs import ADAPTER, Run

Submit = Callable[..., dict[str, Any]]
JOBS = "/v1/fine_tuning/jobs"
HTTP = {"builtin": "http", "url": "https://g.example/", "headers": {"Authorization": "Bearer hush"}}
CHECK = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
PYTHON = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return 1.0\n"}
MULTI = {
    "type": "multi",
    "name": "both",
    "graders": {"check": {**CHECK, "name": "check"}, "python": PYTHON},
    "calculate_output": "0.5 * check + 0.5 * python",
}
FULL = {
    "hyperparameters": {"num_generations": 4, "prompts_per_step": 3, "n_epochs": 2, "beta": 0.1, "loss_type": "grpo"},
    "adapter": {"method": "lora", "r": 4, "target_modules": ["q_proj"]},
    "evaluation": {"every_steps": 2, "samples_per_task": 2, "pass_threshold": 0.5},
    "checkpoints": {"every_steps": 3, "every_minutes": None, "keep": 1},
    "grading": {"max_bad_steps": 2},
    "watch": [{"json_path": "$.name", "name": "name"}],
    "stop": {"silent_share_above": 0.9, "window": 7},
    "record": {"rollouts_per_step": 5},
    "chat_template_kwargs": {"enable_thinking": False},
}


def bundle_of(client: TestClient, job_id: str) -> Bundle:
    archive = client.get(f"{JOBS}/{job_id}/bundle").content
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile("bundle.json")
        assert member is not None
        return Bundle.model_validate_json(member.read())


def source_of(client: TestClient, job_id: str, name: str) -> str:
    archive = client.get(f"{JOBS}/{job_id}/bundle").content
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        member = tar.extractfile(f"rewards/{name}.py")
        assert member is not None
        return member.read().decode()


def upload_again(client: TestClient, bundle: Bundle) -> Uploads:
    """The job's own files, and each source as `RerunClient.upload_source` sends it."""
    ids = {}
    for term in bundle.spec.rewards:
        if isinstance(term, PinnedReward):
            form = {"name": term.name, "entry_point": term.entry_point, "form": str(term.form)}
            source = source_of(client, bundle.job.id, term.name)
            response = client.post("/v1/rewards", files={"file": ("r.py", source.encode())}, data=form)
            assert response.status_code == 201, response.text
            ids[term.name] = response.json()["id"]
    held_out = None if bundle.spec.held_out is None else bundle.spec.held_out.file_id
    return Uploads(training=bundle.spec.training.file_id, held_out=held_out, rewards=ids)


def resolved_again(client: TestClient, job: dict[str, Any], **credentials: Credentials) -> tuple[Any, Any]:
    """The spec of the job, and of its reproduction; where sources are kept apart."""
    bundle = bundle_of(client, job["id"])
    body = create_body(bundle, upload_again(client, bundle), credentials)
    response = client.post(JOBS, json=body)
    assert response.status_code == 201, response.text
    assert response.json()["metadata"] == {"reproduces": job["id"]}
    again = bundle_of(client, response.json()["id"])
    apart: Any = {"rewards": {"__all__": {"reward_id", "version_id"}}}
    return bundle.spec.model_dump(exclude=apart), again.spec.model_dump(exclude=apart)


def test_a_plain_job_resolves_to_itself(client: TestClient, submit: Submit):
    first, second = resolved_again(client, submit(seed=7, suffix="mine"))
    assert first == second


def test_every_setting_of_our_method_comes_along(client: TestClient, submit: Submit, body: dict[str, Any]):
    rewards = [
        {**body["method"]["grpo"]["rewards"][0], "name": "first", "weight": 0.3, "form": "per_sample"},
        {"builtin": "exact_match", "column": "answer", "weight": -2, "gate": {"reward": "first", "at_least": 0.5}},
    ]
    job = submit(method={"type": "grpo", "grpo": {**FULL, "rewards": rewards}}, validation_file=None)
    first, second = resolved_again(client, job)
    assert first == second
    assert first["evaluation"]["held_out_fraction"] == 0.1


@pytest.mark.parametrize("grader", [PYTHON, MULTI], ids=["python", "multi"])
def test_a_job_of_openais_method_is_one_of_ours(client: TestClient, submit: Submit, grader: dict[str, Any]):
    method = {"type": "reinforcement", "reinforcement": {"grader": grader, "hyperparameters": {"batch_size": 3}}}
    first, second = resolved_again(client, submit(method=method))
    assert first == second


@pytest.mark.parametrize("name", sorted(BUILTINS.keys() - {"formula", "http"}))
def test_every_builtin_reward_comes_along(client: TestClient, submit: Submit, name: str):
    term = {"builtin": name, **BUILTINS[name].example}
    columns = dict.fromkeys(BUILTINS[name].model_validate(term).columns, "4")
    file = upload(client, rows(20, **columns)).json()["id"]
    method = {"type": "grpo", "grpo": {"rewards": [term]}}
    first, second = resolved_again(client, submit(method=method, training_file=file, validation_file=None))
    assert first == second


def test_credentials_are_put_back(client: TestClient, submit: Submit):
    job = submit(method={"type": "grpo", "grpo": {"rewards": [HTTP]}})
    given = Credentials(headers=HTTP["headers"])
    first, second = resolved_again(client, job, http=given)
    assert first == second
    assert first["rewards"][0]["credentials_sha256"] is not None


def test_a_branch_begins_with_the_same_checkpoint(
    client: TestClient, submit: Submit, run: Run, sessions: Sessions, store: ObjectStore
):
    run.checkpoint(2, ADAPTER)
    name = client.get(f"{run.path}/checkpoints").json()["data"][0]["fine_tuned_model_checkpoint"]
    first, second = resolved_again(client, submit(model=name))
    assert first == second
    assert first["start_from"]["step"] == 2
