"""Jobs over HTTP: submit, preview, list, read, cancel."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from core.db import jobs
from core.db.models import GradingTask
from core.db.session import Sessions
from core.grading_tasks import GradingTaskKind
from core.ids import JobId
from core.spec import JobSpec
from core.status import Stage
from tests.api.forms import REWARD, upload
from tests.api.jobs.conftest import rows, upload_reward
from tests.api.jobs.runs import Run

JOBS = "/v1/fine_tuning/jobs"
GRADER = {
    "type": "python",
    "name": "exact match",
    "source": "def grade(sample, item):\n    return float(item['answer'] in sample['output_text'])\n",
}

Body = dict[str, Any]
Submit = Callable[..., Body]


def test_a_job_is_recorded_as_queued_in_openais_shape(client: TestClient, body: Body) -> None:
    response = client.post(JOBS, json={**body, "suffix": "bio", "metadata": {"team": "search"}})
    assert response.status_code == 201
    job = response.json()
    assert job["id"].startswith("ftjob-")
    assert response.headers["location"] == f"{JOBS}/{job['id']}"
    expected = {
        "object": "fine_tuning.job",
        "status": "queued",
        "model": "podium/tiny",
        "training_file": body["training_file"],
        "validation_file": body["validation_file"],
        "fine_tuned_model": None,
        "finished_at": None,
        "estimated_finish": None,
        "error": None,
        "result_files": [],
        "trained_tokens": None,
        "organization_id": "tenant-ours",
        "hyperparameters": {},
        "integrations": [],
        "metadata": {"team": "search"},
        "method": body["method"],
        "seed": 42,
        "attempt": 0,
    }
    assert {key: job[key] for key in expected} == expected
    assert client.get(f"{JOBS}/{job['id']}").json() == job


def test_every_default_is_resolved_in_the_spec(submit: Submit, body: Body) -> None:
    spec = JobSpec.model_validate(submit()["spec"])
    assert spec.max_steps == 2  # 20 rows, 8 prompts a step, 1 epoch: rounded
    assert spec.learning_rate == 2e-5
    assert spec.training.rows == 20
    assert spec.held_out is not None
    assert spec.held_out.rows == 8
    assert spec.model.revision is not None
    (reward,) = spec.rewards
    assert (reward.name, reward.weight, reward.entry_point) == ("exact", 1.0, "reward")
    assert reward.reward_id == body["method"]["grpo"]["rewards"][0]["reward"]


@pytest.mark.parametrize(
    ("hyperparameters", "steps"),
    [
        ({"max_steps": 7}, 7),
        ({"n_epochs": 2}, 5),
        ({"n_epochs": 0.01}, 1),
        ({"n_epochs": 2, "num_iterations": 3}, 15),
        ({"prompts_per_step": 20}, 1),
    ],
)
def test_epochs_become_steps(submit: Submit, body: Body, hyperparameters: Body, steps: int) -> None:
    body["method"]["grpo"]["hyperparameters"] = hyperparameters
    assert submit()["spec"]["hyperparameters"]["max_steps"] == steps


@pytest.mark.parametrize(("minutes", "stored"), [("auto", "auto"), (None, None), (5, 5.0), (0.5, 0.5)])
def test_when_to_save_and_how_much_to_keep_is_in_the_spec(
    submit: Submit, body: Body, minutes: str | float | None, stored: str | float | None
) -> None:
    body["method"]["grpo"]["checkpoints"] = {"every_minutes": minutes, "keep": 5}
    assert submit()["spec"]["checkpoints"] == {"every_steps": 25, "every_minutes": stored, "keep": 5}


def test_a_full_run_has_the_smaller_default_learning_rate(submit: Submit, body: Body) -> None:
    body["method"]["grpo"]["adapter"] = {"method": "full"}
    assert submit()["spec"]["hyperparameters"]["learning_rate"] == 1e-6


def test_a_grader_inside_the_job_is_probed_by_the_dry_run_once(
    client: TestClient, body: Body, sessions: Sessions
) -> None:
    body["method"] = {"type": "reinforcement", "reinforcement": {"grader": GRADER}}
    for _ in range(2):
        warnings = client.post(JOBS, params={"dry_run": True}, json=body).json()["warnings"]
        assert ("method.reinforcement.grader", "report_pending") in {(w["field"], w["code"]) for w in warnings}
    with sessions() as session:
        (task,) = session.scalars(select(GradingTask).where(GradingTask.kind == GradingTaskKind.PROBE_SOURCE))
    assert task.request["source"] == GRADER["source"]
    assert (task.request["entry_point"], task.request["form"]) == ("grade", "openai")
    assert task.request["file_id"] == body["training_file"]


def test_a_job_keeps_the_reward_version_that_was_newest(client: TestClient, submit: Submit, body: Body) -> None:
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    first = submit()["spec"]["rewards"][0]["version_id"]
    client.post(f"/v1/rewards/{reward}/versions", json={"source": REWARD + "# changed\n"})
    assert submit()["spec"]["rewards"][0]["version_id"] != first
    body["method"]["grpo"]["rewards"][0]["version"] = 1
    assert submit()["spec"]["rewards"][0]["version_id"] == first


def test_reward_names_are_unique_in_a_job(client: TestClient, submit: Submit, body: Body) -> None:
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    same_name = upload_reward(client, REWARD.replace("float", "0.5 * float"))
    body["method"]["grpo"]["rewards"] = [{"reward": reward}, {"reward": same_name}, {"reward": reward, "name": "own"}]
    assert [term["name"] for term in submit()["spec"]["rewards"]] == ["exact", "exact-2", "own"]


def test_openais_reinforcement_method_carries_its_grader_into_the_job(
    submit: Submit, body: Body, sessions: Sessions
) -> None:
    method = {"type": "reinforcement", "reinforcement": {"grader": GRADER, "hyperparameters": {"n_epochs": "auto"}}}
    job = submit(method=method)
    assert job["method"] == method
    (reward,) = job["spec"]["rewards"]
    assert (reward["name"], reward["form"], reward["entry_point"]) == ("exact-match", "openai", "grade")
    with sessions() as session:
        assert jobs.inline_source(session, JobId(job["id"]), "exact-match") == GRADER["source"]


def test_without_a_validation_file_a_share_is_held_out(client: TestClient, body: Body) -> None:
    del body["validation_file"]
    preview = client.post(JOBS, params={"dry_run": True}, json=body).json()
    assert (preview["training_rows"], preview["held_out_tasks"]) == (18, 2)
    assert preview["spec"]["held_out"] is None


def test_dry_run_shows_what_would_run_and_creates_nothing(client: TestClient, body: Body) -> None:
    response = client.post(JOBS, params={"dry_run": True}, json=body)
    assert response.status_code == 200
    preview = response.json()
    assert preview["object"] == "fine_tuning.job.preview"
    assert (preview["steps"], preview["rollouts_per_step"], preview["rollouts"]) == (2, 64, 128)
    assert [warning["code"] for warning in preview["warnings"]] == ["report_pending"], "no grading worker runs here"
    assert client.get(JOBS).json()["data"] == []


def test_a_preview_is_what_would_be_created(client: TestClient, submit: Submit, body: Body) -> None:
    preview = client.post(JOBS, params={"dry_run": True}, json=body).json()
    assert submit()["spec"] == preview["spec"]


def test_held_out_rows_with_the_same_prompt_are_one_task_and_that_is_said(client: TestClient, body: Body) -> None:
    body["validation_file"] = upload(client, rows(7) * 3).json()["id"]
    preview = client.post(JOBS, params={"dry_run": True}, json=body).json()
    assert preview["held_out_tasks"] == 7
    (warning,) = (one for one in preview["warnings"] if one["code"] != "report_pending")
    assert (warning["field"], warning["code"]) == ("validation_file", "repeated_tasks")
    assert "the 21 held-out rows have 7 different prompts" in warning["message"]
    body["validation_file"] = upload(client, rows(5) * 4).json()["id"]
    warnings = client.post(JOBS, params={"dry_run": True}, json=body).json()["warnings"]
    assert {one["code"] for one in warnings} == {"weak_verdict", "repeated_tasks", "report_pending"}


def test_a_preview_warns_of_what_may_not_be_meant(client: TestClient, body: Body) -> None:
    del body["validation_file"]
    body["method"]["grpo"]["evaluation"] = {"every_steps": 50}
    warnings = client.post(JOBS, params={"dry_run": True}, json=body).json()["warnings"]
    assert {(w["field"], w["code"]) for w in warnings} == {
        ("training_file", "weak_verdict"),
        ("method.grpo.evaluation.every_steps", "no_interim_evaluation"),
        ("method.grpo.rewards[0]", "report_pending"),
    }


def test_if_match_runs_exactly_what_was_previewed(client: TestClient, body: Body) -> None:
    etag = client.post(JOBS, params={"dry_run": True}, json=body).headers["etag"]
    assert client.post(JOBS, json=body, headers={"If-Match": etag}).status_code == 201
    changed = {**body, "seed": 7}
    response = client.post(JOBS, json=changed, headers={"If-Match": etag})
    assert response.status_code == 412
    assert response.json()["error"]["code"] == "precondition_failed"
    assert len(client.get(JOBS).json()["data"]) == 1


def test_if_match_notices_a_new_reward_version(client: TestClient, body: Body) -> None:
    etag = client.post(JOBS, params={"dry_run": True}, json=body).headers["etag"]
    reward = body["method"]["grpo"]["rewards"][0]["reward"]
    client.post(f"/v1/rewards/{reward}/versions", json={"source": REWARD + "# changed\n"})
    assert client.post(JOBS, json=body, headers={"If-Match": etag}).status_code == 412


def test_a_second_submit_with_the_same_key_is_the_same_job(client: TestClient, body: Body) -> None:
    headers = {"Idempotency-Key": "once"}
    first = client.post(JOBS, json=body, headers=headers)
    again = client.post(JOBS, json=body, headers=headers)
    assert (again.status_code, again.json()) == (201, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == f"{JOBS}/{again.json()['id']}"
    assert len(client.get(JOBS).json()["data"]) == 1
    assert client.post(JOBS, json={**body, "seed": 7}, headers=headers).json()["error"]["code"] == (
        "idempotency_key_reused"
    )


def test_lists_are_newest_first_in_pages(client: TestClient, submit: Submit) -> None:
    ids = [submit()["id"] for _ in range(3)][::-1]
    first = client.get(JOBS, params={"limit": 2}).json()
    assert [job["id"] for job in first["data"]] == ids[:2]
    assert (first["has_more"], first["last_id"]) == (True, ids[1])
    rest = client.get(JOBS, params={"limit": 2, "after": first["last_id"]}).json()
    assert [job["id"] for job in rest["data"]] == ids[2:]
    assert rest["has_more"] is False


def test_lists_can_be_filtered_by_status_and_metadata(client: TestClient, submit: Submit) -> None:
    search = submit(metadata={"team": "search", "run": "1"})["id"]
    submit(metadata={"team": "ads", "run": "1"})
    client.post(f"{JOBS}/{search}/cancel")
    found = client.get(JOBS, params={"metadata[team]": "search", "metadata[run]": "1"}).json()["data"]
    assert [job["id"] for job in found] == [search]
    assert [job["id"] for job in client.get(JOBS, params={"status": "cancelled"}).json()["data"]] == [search]
    assert client.get(JOBS, params={"metadata[team]": "nobody"}).json()["data"] == []


def test_jobs_of_others_are_not_there(other_tenant: TestClient, submit: Submit) -> None:
    job_id = submit()["id"]
    assert other_tenant.get(JOBS).json()["data"] == []
    for response in (other_tenant.get(f"{JOBS}/{job_id}"), other_tenant.post(f"{JOBS}/{job_id}/cancel")):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "job_not_found"
    missing = other_tenant.get(f"{JOBS}/ftjob-missing").json()["error"]["message"]
    assert missing.replace("ftjob-missing", job_id) == other_tenant.get(f"{JOBS}/{job_id}").json()["error"]["message"]


def test_a_waiting_job_is_cancelled_at_once(client: TestClient, submit: Submit) -> None:
    job = client.post(f"{JOBS}/{submit()['id']}/cancel").json()
    assert (job["status"], job["status_reason"]) == ("cancelled", "user_cancelled")
    assert job["finished_at"] is not None


def test_a_running_job_keeps_its_status_until_the_trainer_has_stopped(client: TestClient, run: Run) -> None:
    for _ in range(2):
        job = client.post(f"{run.path}/cancel").json()
        assert job["status"] == "running"
        assert job["cancel_requested_at"] is not None
    events = client.get(f"{run.path}/events").json()["data"]
    assert [event["code"] for event in events].count("cancel_requested") == 1


def test_a_finished_job_cannot_be_cancelled(client: TestClient, run: Run) -> None:
    run.succeed()
    response = client.post(f"{run.path}/cancel")
    assert response.status_code == 409
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("job_not_cancellable", "job_id")
    assert error["fix"] == "Nothing needs to be done: it holds no worker."
    assert response.headers["x-should-retry"] == "false"
    assert client.get(run.path).json()["status"] == "succeeded"


def test_progress_comes_from_the_newest_step(client: TestClient, run: Run) -> None:
    run.enter(Stage.TRAINING)
    run.step(1, **{"reward": 0.25, "signal/silent_share": 0.5, "frac_reward_zero_std": 0.6, "step_time": 3.0})
    job = client.get(run.path).json()
    assert (job["status"], job["stage"], job["attempt"]) == ("running", "training", 1)
    assert job["progress"] == {
        "step": 1,
        "max_steps": 2,
        "durable_step": None,
        "reward": 0.25,
        "silent_share": 0.5,
        "estimated_remaining_s": 3.0,
    }
    assert job["estimated_finish"] >= job["started_at"]
    assert client.get(JOBS).json()["data"] == [job]


def test_a_finished_job_names_its_model_and_results(client: TestClient, run: Run) -> None:
    run.step(2, reward=0.5, step_time=1.0)
    run.succeed(b'{"verdict": {}}')
    job = client.get(run.path).json()
    assert job["status"] == "succeeded"
    assert job["fine_tuned_model"] == f"ft:podium/tiny::{run.job_id}"
    assert job["trained_tokens"] == 1234
    assert (job["estimated_finish"], job["progress"]["estimated_remaining_s"]) == (None, None)
    (results,) = job["result_files"]
    assert json.loads(client.get(f"/v1/files/{results}/content").content) == {"verdict": {}}


def test_a_failed_job_says_why(client: TestClient, run: Run) -> None:
    run.fail()
    job = client.get(run.path).json()
    assert (job["status"], job["status_reason"]) == ("failed", "out_of_memory")
    assert job["error"] == {
        "code": "out_of_memory",
        "message": "The GPU is full.",
        "param": None,
        "fix": "Use a smaller batch.",
    }


def test_a_file_is_kept_while_a_job_needs_it(client: TestClient, submit: Submit, body: Body) -> None:
    job_id = submit()["id"]
    assert client.delete(f"/v1/files/{body['training_file']}").json()["error"]["code"] == "file_in_use"
    client.post(f"{JOBS}/{job_id}/cancel")
    assert client.delete(f"/v1/files/{body['training_file']}").status_code == 200
