"""The official `openai` client, unchanged but for `base_url` and `api_key`, against the running server."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import OpenAI
from openai.types.fine_tuning import FineTuningJob

from core.db import api_keys
from core.db.session import Sessions
from core.ids import TenantId
from core.storage.store import ObjectStore
from tests.api.conftest import OURS, THEIRS
from tests.api.forms import REWARD
from tests.api.jobs.conftest import rows
from tests.api.jobs.runs import ADAPTER, Run
from tests.api.jobs.test_jobs import GRADER
from tests.servers.api import running_api

Job = dict[str, Any]


@pytest.fixture
def url(app: FastAPI) -> Iterator[str]:
    with running_api(app) as url:
        yield f"{url}/v1"


@pytest.fixture
def connect(url: str, sessions: Sessions) -> Iterator[Callable[[TenantId], OpenAI]]:
    clients: list[OpenAI] = []

    def make(tenant_id: TenantId) -> OpenAI:
        with sessions.begin() as session:
            _, secret = api_keys.create(session, tenant_id=tenant_id, name="openai")
        clients.append(OpenAI(base_url=url, api_key=secret))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(connect: Callable[[TenantId], OpenAI]) -> OpenAI:
    return connect(OURS)


@pytest.fixture
def job(client: OpenAI) -> Job:
    """Arguments of `jobs.create` for a good job."""
    training = client.files.create(file=("train.jsonl", rows(20)), purpose="fine-tune")
    held_out = client.files.create(file=("held_out.jsonl", rows(8, first=100)), purpose="fine-tune")
    grader = {"grader": GRADER, "hyperparameters": {"n_epochs": "auto", "batch_size": 4}}
    return {
        "model": "podium/tiny",
        "training_file": training.id,
        "validation_file": held_out.id,
        "method": {"type": "reinforcement", "reinforcement": grader},
    }


@pytest.fixture
def finished(client: OpenAI, job: Job, sessions: Sessions, store: ObjectStore) -> FineTuningJob:
    """A job that a worker took, trained and published."""
    created = client.fine_tuning.jobs.create(**job, suffix="bio")
    run = Run.claim(sessions, store, created.id)
    for step in (1, 2, 3):
        run.step(step, reward=step / 4)
        run.checkpoint(step, ADAPTER)
    run.succeed(b'{"verdict": "improved"}')
    return client.fine_tuning.jobs.retrieve(created.id)


def test_files_are_made_read_listed_and_deleted(client: OpenAI) -> None:
    made = [client.files.create(file=(f"{n}.jsonl", rows(3)), purpose="fine-tune") for n in range(3)]
    file = client.files.retrieve(made[0].id)
    assert (file.object, file.purpose, file.status, file.bytes) == ("file", "fine-tune", "processed", len(rows(3)))
    assert [listed.id for listed in client.files.list(limit=2)] == [file.id for file in reversed(made)]
    assert client.files.content(file.id).content == rows(3)
    assert client.files.delete(file.id).deleted is True
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


def test_a_reinforcement_job_is_created_and_read(client: OpenAI, job: Job) -> None:
    created = client.fine_tuning.jobs.create(**job, seed=7, suffix="bio", metadata={"team": "search"})
    assert isinstance(created, FineTuningJob)
    assert (created.status, created.seed, created.metadata) == ("queued", 7, {"team": "search"})
    assert created.method is not None
    assert created.method.reinforcement is not None
    assert created.method.reinforcement.grader.to_dict() == GRADER
    assert client.fine_tuning.jobs.retrieve(created.id) == created


def test_a_grpo_job_is_created_with_our_own_method(client: OpenAI, job: Job) -> None:
    reward = client.post("/rewards", body={"name": "exact", "source": REWARD}, cast_to=httpx.Response).json()
    method = {"type": "grpo", "grpo": {"rewards": [{"reward": reward["id"]}], "hyperparameters": {"max_steps": 3}}}
    created = client.fine_tuning.jobs.create(**{**job, "method": method})
    assert created.status == "queued"
    assert created.model_extra is not None
    assert created.model_extra["spec"]["hyperparameters"]["max_steps"] == 3
    assert created.model_extra["progress"]["step"] == 0


def test_jobs_are_listed_page_by_page(client: OpenAI, job: Job) -> None:
    ids = [client.fine_tuning.jobs.create(**job, metadata={"n": str(n)}).id for n in range(5)]
    assert [listed.id for listed in client.fine_tuning.jobs.list(limit=2)] == ids[::-1]
    assert [listed.id for listed in client.fine_tuning.jobs.list(metadata={"n": "3"})] == [ids[3]]


def test_events_are_read_page_by_page(client: OpenAI, finished: FineTuningJob) -> None:
    events = list(client.fine_tuning.jobs.list_events(finished.id, limit=1))
    assert [event.message for event in events] == [
        "Improved.",
        "A worker took the job.",
        "The job is recorded and waits for a worker.",
    ]
    assert all(event.object == "fine_tuning.job.event" and event.type == "message" for event in events)


def test_checkpoints_are_read_page_by_page(client: OpenAI, finished: FineTuningJob) -> None:
    checkpoints = list(client.fine_tuning.jobs.checkpoints.list(finished.id, limit=2))
    assert [checkpoint.step_number for checkpoint in checkpoints] == [3, 2, 1]
    assert checkpoints[0].metrics.step == 3
    assert checkpoints[0].fine_tuned_model_checkpoint == f"{finished.fine_tuned_model}:ckpt-step-3"


def test_a_finished_job_hands_out_its_results(client: OpenAI, finished: FineTuningJob) -> None:
    assert finished.status == "succeeded"
    assert finished.fine_tuned_model == f"ft:podium/tiny:bio:{finished.id}"
    assert finished.trained_tokens == 1234
    (results,) = finished.result_files
    assert client.files.content(results).json() == {"verdict": "improved"}
    assert client.files.retrieve(results).purpose == "fine-tune-results"


def test_models_are_listed_and_read(client: OpenAI, finished: FineTuningJob) -> None:
    assert finished.fine_tuned_model is not None
    assert [model.id for model in client.models.list()] == ["podium/tiny", finished.fine_tuned_model]
    assert client.models.retrieve(finished.fine_tuned_model).object == "model"
    assert client.models.retrieve("podium/tiny").owned_by == "operator"


def test_a_job_is_cancelled_once(client: OpenAI, job: Job) -> None:
    created = client.fine_tuning.jobs.create(**job)
    assert client.fine_tuning.jobs.cancel(created.id).status == "cancelled"
    sent: list[httpx.Request] = []
    with httpx.Client(event_hooks={"request": [sent.append]}) as http, pytest.raises(openai.ConflictError) as caught:
        client.with_options(http_client=http).fine_tuning.jobs.cancel(created.id)
    assert caught.value.code == "job_not_cancellable"
    assert len(sent) == 1, "a state conflict is not tried again"


def test_a_job_is_paused_and_resumed(client: OpenAI, job: Job) -> None:
    created = client.fine_tuning.jobs.create(**job)
    for _ in range(2):
        paused = client.fine_tuning.jobs.pause(created.id)
        assert isinstance(paused, FineTuningJob)
        assert paused.status == "paused"
    resumed = client.fine_tuning.jobs.resume(created.id)
    assert (resumed.id, resumed.status) == (created.id, "queued")
    with pytest.raises(openai.ConflictError) as caught:
        client.fine_tuning.jobs.resume(created.id)
    assert caught.value.code == "job_not_paused"


def test_pausing_what_has_ended_is_a_conflict_that_is_not_tried_again(client: OpenAI, finished: FineTuningJob) -> None:
    sent: list[httpx.Request] = []
    with httpx.Client(event_hooks={"request": [sent.append]}) as http, pytest.raises(openai.ConflictError) as caught:
        client.with_options(http_client=http).fine_tuning.jobs.pause(finished.id)
    assert caught.value.code == "job_not_pausable"
    assert len(sent) == 1


def test_a_job_is_created_from_a_checkpoint_of_another(client: OpenAI, job: Job, finished: FineTuningJob) -> None:
    checkpoint = next(iter(client.fine_tuning.jobs.checkpoints.list(finished.id)))
    branch = client.fine_tuning.jobs.create(**{**job, "model": checkpoint.fine_tuned_model_checkpoint})
    assert branch.model == "podium/tiny"
    assert branch.model_extra is not None
    assert branch.model_extra["branched_from"]["checkpoint_id"] == checkpoint.id
    assert finished.fine_tuned_model is not None
    again = client.fine_tuning.jobs.create(**{**job, "model": finished.fine_tuned_model})
    assert again.model_extra is not None
    assert again.model_extra["branched_from"] == branch.model_extra["branched_from"]


def test_missing_things_are_not_found(client: OpenAI, connect: Callable[[TenantId], OpenAI], job: Job) -> None:
    theirs = connect(THEIRS)
    created = client.fine_tuning.jobs.create(**job)
    for missing in ("ftjob-missing", created.id):
        with pytest.raises(openai.NotFoundError) as caught:
            theirs.fine_tuning.jobs.retrieve(missing)
        assert (caught.value.code, caught.value.param) == ("job_not_found", "job_id")
        assert caught.value.request_id


def test_a_bad_job_names_its_problem(client: OpenAI, job: Job) -> None:
    job["method"]["reinforcement"]["hyperparameters"]["batch_size"] = 0
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.fine_tuning.jobs.create(**job)
    assert caught.value.param == "method.reinforcement.hyperparameters.batch_size"
    assert caught.value.type == "invalid_request_error"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["fix"]


def test_a_file_of_another_tenant_is_not_found(client: OpenAI, connect: Callable[[TenantId], OpenAI], job: Job) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        connect(THEIRS).fine_tuning.jobs.create(**job)
    assert (caught.value.code, caught.value.param) == ("file_not_found", "training_file")


def test_a_wrong_key_is_an_authentication_error(url: str) -> None:
    with OpenAI(base_url=url, api_key="pk_wrong") as stranger, pytest.raises(openai.AuthenticationError) as caught:
        stranger.fine_tuning.jobs.list()
    assert caught.value.code == "invalid_api_key"


def test_an_idempotency_key_goes_through_the_client(client: OpenAI, job: Job) -> None:
    headers = {"Idempotency-Key": "once"}
    first = client.fine_tuning.jobs.create(**job, extra_headers=headers)
    assert client.fine_tuning.jobs.create(**job, extra_headers=headers).id == first.id


def test_ours_beside_openais_is_reachable_through_the_client(client: OpenAI, finished: FineTuningJob) -> None:
    path = f"/fine_tuning/jobs/{finished.id}"
    metrics = client.get(f"{path}/metrics", cast_to=httpx.Response).json()
    assert [row["metrics"]["reward"] for row in metrics["data"]] == [0.25, 0.5, 0.75]
    adapter = client.get(f"{path}/adapter", cast_to=httpx.Response)
    assert adapter.headers["content-type"] == "application/x-tar"


def test_integrations_are_taken_and_shown_in_openais_shape(client: OpenAI, job: Job) -> None:
    """Extended by types that OpenAI does not have."""
    ours: Any = [{"type": "mlflow", "mlflow": {"project": "bio"}}, {"type": "tensorboard"}]
    wandb: Any = {"type": "wandb", "wandb": {"project": "bio", "name": "first", "tags": ["a"], "entity": None}}
    created = client.fine_tuning.jobs.create(**job, integrations=[wandb, *ours])
    first, second, third = client.fine_tuning.jobs.retrieve(created.id).integrations or []
    assert (first.type, first.wandb.project, first.wandb.name, first.wandb.tags) == ("wandb", "bio", "first", ["a"])
    assert first.wandb.entity is None
    assert second.to_dict() == {"type": "mlflow", "mlflow": {"project": "bio", "name": None, "tags": []}}
    assert third.to_dict() == {"type": "tensorboard", "tensorboard": {}}
