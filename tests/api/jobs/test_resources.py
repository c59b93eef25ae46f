"""How many GPUs a job may ask for, and what of its numbers must divide by them."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.settings import Settings
from tests.api.jobs.test_job_validation import JOBS, NUMBERS, refusal, with_change

GPUS = 4

Body = dict[str, Any]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"gpus": GPUS})


def asking(body: Body, gpus: int, **numbers: int) -> Body:
    body = with_change(body, "resources.gpus", gpus)
    for name, value in numbers.items():
        body = with_change(body, f"{NUMBERS}.{name}", value)
    return body


def test_a_job_may_have_all_the_gpus_of_the_largest_worker(client: TestClient, body: Body) -> None:
    job = client.post(JOBS, json=asking(body, GPUS, prompts_per_step=GPUS))
    assert job.status_code == 201, job.text


def test_a_job_that_no_worker_could_take_is_refused(client: TestClient, body: Body) -> None:
    error = refusal(client, asking(body, GPUS + 1, prompts_per_step=GPUS + 1))
    assert (error["code"], error["param"]) == ("too_many_gpus", "resources.gpus")
    assert error["errors"][0]["fix"].startswith("Ask for at most 4")


def test_a_model_shared_out_among_gpus_is_refused_by_name(client: TestClient, body: Body) -> None:
    error = refusal(client, with_change(asking(body, 2), "resources.fsdp", True))
    assert [(problem["field"], problem["code"]) for problem in error["errors"]] == [
        ("resources.fsdp", "fsdp_not_supported")
    ]


@pytest.mark.parametrize(
    ("name", "value"), [("use_vllm", True), ("dynamic_sampling", {"max_extra_batches": 1}), ("prompt_sampling", {})]
)
def test_what_works_with_one_gpu_only_is_refused_by_name(client: TestClient, body: Body, name: str, value: Any) -> None:
    error = refusal(client, with_change(asking(body, 2, prompts_per_step=2), f"{NUMBERS}.{name}", value))
    assert (error["code"], error["param"]) == ("needs_one_gpu", f"{NUMBERS}.{name}")


def test_what_a_job_takes_is_in_its_spec(client: TestClient, body: Body) -> None:
    job = client.post(JOBS, json=asking(body, 2, prompts_per_step=2)).json()
    assert job["spec"]["resources"] == {"gpus": 2}


@pytest.mark.parametrize(
    ("numbers", "field", "fix"),
    [
        ({"prompts_per_step": 3}, "prompts_per_step", "Use a multiple of 2."),
        (
            {"prompts_per_step": 2, "num_generations": 6, "rollouts_per_pass": 4},
            "rollouts_per_pass",
            "Valid values: 1, 2, 3, 6.",
        ),
    ],
)
def test_a_step_that_cannot_be_shared_out_is_refused(
    client: TestClient, body: Body, numbers: dict[str, int], field: str, fix: str
) -> None:
    error = refusal(client, asking(body, 2, **numbers))
    assert (error["code"], error["param"]) == ("uneven_processes", f"{NUMBERS}.{field}")
    assert error["errors"][0]["fix"] == fix
