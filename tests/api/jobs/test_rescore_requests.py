"""Asking for a rescore: what is refused, and what is answered while nobody has graded yet."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.db import grading_tasks
from tests.api.forms import problems, upload
from tests.api.jobs.conftest import rows, upload_reward
from tests.api.jobs.runs import Run

OTHER = "def reward(completion, {}):\n    return 0.5\n"


@pytest.fixture
def job(submit) -> str:
    return f"/v1/fine_tuning/jobs/{submit()['id']}"


def ask(client: TestClient, job: str, **body: Any) -> Any:
    return client.post(f"{job}/rescore", json=body)


def test_without_a_worker_there_is_a_task_to_ask_for_later(client, job, body):
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    response = ask(client, job, reward=reward)
    assert response.status_code == 202
    task = response.json()
    assert (task["object"], task["status"], task["report"]) == ("fine_tuning.job.rescore", "queued", None)
    assert (task["term"], f"/v1/fine_tuning/jobs/{task['job_id']}") == ("exact", job)
    assert client.get(f"{job}/rescore/{task['id']}").json() == task


def test_a_task_is_found_by_its_owner_under_its_own_job_only(client, other_tenant, submit, job, body):
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    task = ask(client, job, reward=reward).json()
    elsewhere = f"/v1/fine_tuning/jobs/{submit()['id']}"
    for asker, path in ((other_tenant, job), (client, elsewhere), (other_tenant, elsewhere)):
        assert asker.get(f"{path}/rescore/{task['id']}").status_code == 404
    assert client.get(f"{job}/rescore/gtask-nobody").json()["error"]["code"] == "rescore_not_found"
    assert ask(other_tenant, job, reward=reward).status_code == 404


def test_everything_that_is_wrong_is_told_at_once(client, job, body):
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    response = ask(client, job, reward=reward, version=7, term="style", from_step=9, to_step=3)
    assert response.status_code == 422
    assert set(problems(response)) == {"version", "term", "from_step"}


@pytest.mark.parametrize(
    ("parameters", "code"), [("gold", "missing_column"), ("completion_ids", "completion_ids_not_kept")]
)
def test_a_reward_that_cannot_grade_what_is_kept_is_refused(client, job, parameters, code):
    source = OTHER.format(parameters)
    if parameters == "completion_ids":
        source = "def reward(completions, completion_ids):\n    return [0.5 for _ in completions]\n"
    response = ask(client, job, reward=upload_reward(client, source, name="other"))
    assert [error["code"] for error in response.json()["error"]["errors"]] == [code]


def test_foreign_rewards_are_not_there(client, other_tenant, job):
    foreign = upload_reward(other_tenant, name="foreign")
    assert ask(client, job, reward=foreign).json()["error"]["errors"][0]["code"] == "reward_not_found"


def test_of_several_rewards_one_must_be_named(client, submit, body):
    rewards = [*body["method"]["grpo"]["rewards"], {"builtin": "length", "max": 20}]
    several = submit(method={"type": "grpo", "grpo": {"rewards": rewards}})
    path = f"/v1/fine_tuning/jobs/{several['id']}"
    assert list(problems(ask(client, path, reward=rewards[0]["reward"]))) == ["term"]
    assert ask(client, path, reward=rewards[0]["reward"], term="length").status_code == 202


def test_deleted_rows_cannot_be_graded_again(client, run: Run, body):
    run.succeed()
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    assert client.delete(f"/v1/files/{body['training_file']}").status_code == 200
    assert ask(client, run.path, reward=reward).json()["error"]["errors"][0]["code"] == "rows_deleted"


def test_a_formula_cannot_be_replaced(client, submit, body):
    """OpenAI's `multi`: graders, and a formula over their scores."""
    check = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
    graders = {"same": {**check, "name": "s", "operation": "eq"}, "near": {**check, "name": "n", "operation": "ilike"}}
    multi = {"type": "multi", "name": "both", "graders": graders, "calculate_output": "0.5 * same + 0.5 * near"}
    job = submit(method={"type": "reinforcement", "reinforcement": {"grader": multi}})
    path, reward = f"/v1/fine_tuning/jobs/{job['id']}", upload_reward(client, name="other")
    (error,) = ask(client, path, reward=reward, term="both").json()["error"]["errors"]
    assert (error["field"], error["code"], error["fix"]) == (
        "term",
        "term_is_a_formula",
        "Replace one of these: same, near.",
    )
    assert ask(client, path, reward=reward, term="near").status_code == 202


def test_the_form_is_the_requests_or_the_jobs_for_the_same_reward(client, sessions, submit):
    """A version is called as the job calls the reward, however its parameters look."""
    source = "def reward(solution_str, ground_truth):\n    return 1.0\n"
    reward = upload_reward(client, source, name="told")
    term = {"reward": reward, "form": "per_sample"}
    training = upload(client, rows(20, ground_truth="2")).json()["id"]
    validation = upload(client, rows(8, first=100, ground_truth="2")).json()["id"]
    files = {"training_file": training, "validation_file": validation}
    job = submit(method={"type": "grpo", "grpo": {"rewards": [term]}}, **files)
    path = f"/v1/fine_tuning/jobs/{job['id']}"
    other = upload_reward(client, source, name="elsewhere")
    newer = {"source": source.replace("1.0", "0.5")}
    assert client.post(f"/v1/rewards/{reward}/versions", json=newer).status_code == 201
    for asked, form in (
        ({"reward": reward}, "per_sample"),
        ({"reward": reward, "form": "osmosis"}, "osmosis"),
        ({"reward": other}, None),
        ({"reward": reward, "version": 2}, "per_sample"),
    ):
        task = ask(client, path, **asked).json()
        with sessions() as session:
            stored = grading_tasks.get(session, task["id"])
        assert stored.request["form"] == form
    assert list(problems(ask(client, path, reward=reward, form="openai"))) == ["form"]


def test_held_out_rows_without_a_column_are_told_at_once(client, submit):
    job = submit(training_file=upload(client, rows(20, gold="2")).json()["id"])
    gold = upload_reward(client, OTHER.format("gold"), name="gold")
    response = ask(client, f"/v1/fine_tuning/jobs/{job['id']}", reward=gold)
    assert response.json()["error"]["errors"][0]["code"] == "missing_column"


def test_deleted_held_out_rows_are_told_at_once(client, run: Run, body):
    run.succeed()
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    assert client.delete(f"/v1/files/{body['validation_file']}").status_code == 200
    response = ask(client, run.path, reward=reward)
    assert (response.status_code, response.json()["error"]["errors"][0]["code"]) == (422, "rows_deleted")


def test_a_new_version_in_another_form_is_called_in_its_own(client, job, body):
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    source = "def reward(completions, answer):\n    return [1.0 for _ in completions]\n"
    assert client.post(f"/v1/rewards/{reward}/versions", json={"source": source}).status_code == 201
    assert ask(client, job, reward=reward).status_code == 202
