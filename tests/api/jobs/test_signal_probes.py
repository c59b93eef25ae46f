"""`/v1/signal_probes`: checked and resolved as a job is, idempotent as a create is, and never taken for a job."""

import pytest

from core.db import leases, signal_probes
from core.ids import JobId
from core.signal_report import ProbeSize
from core.status import JobStatus, StatusReason
from tests.api.forms import problems
from tests.api.jobs.runs import Run
from tests.signal_reports import ALWAYS, MIXED, NEVER, make_report
from worker.publisher import publish_report

PROBES, JOBS = "/v1/signal_probes", "/v1/fine_tuning/jobs"


@pytest.fixture
def probe(client, body):
    """A probe that waits for a worker."""
    response = client.post(PROBES, json=body)
    assert response.status_code == 201, response.text
    return dict(response.json())


def test_a_probe_takes_the_body_of_a_job_and_what_else_it_is_asked(client, body):
    response = client.post(PROBES, json={**body, "seed": 7, "metadata": {"team": "search"}, "prompts": 5, "samples": 3})
    assert response.status_code == 201
    made = response.json()
    assert response.headers["Location"] == f"{PROBES}/{made['id']}"
    assert made["id"].startswith("sigprobe-")
    assert (made["object"], made["status"], made["prompts"], made["samples"]) == ("signal_probe", "queued", 5, 3)
    assert (made["seed"], made["metadata"], made["training_file"]) == (7, {"team": "search"}, body["training_file"])
    assert "report" not in made
    shown = client.get(f"{PROBES}/{made['id']}").json()
    assert (shown["report"], shown["gpu_seconds"], shown["spec"]["seed"]) == (None, 0, 7)
    assert {name: shown[name] for name in made} == made


def test_unset_it_is_32_prompts_by_the_jobs_own_group(client, body, probe):
    assert (probe["prompts"], probe["samples"]) == (32, 8)
    body["method"]["grpo"]["hyperparameters"] = {"num_generations": 12}
    assert client.post(PROBES, json=body).json()["samples"] == 12


def test_what_would_run_is_the_job_that_was_previewed(client, body, probe):
    preview = client.post(f"{JOBS}?dry_run=true", json=body).json()
    assert client.get(f"{PROBES}/{probe['id']}").json()["spec"] == preview["spec"]


def test_everything_wrong_with_the_job_and_with_the_probe_is_told(client, body):
    response = client.post(PROBES, json={**body, "training_file": "file-none", "validation_file": "file-nil"})
    assert response.status_code == 404
    assert problems(response) == {"training_file": "file_not_found", "validation_file": "file_not_found"}
    response = client.post(PROBES, json={**body, "prompts": 0, "samples": 1, "promts": 3})
    assert response.status_code == 422
    assert problems(response) == {"prompts": "invalid_value", "samples": "invalid_value", "promts": "unknown_field"}
    assert "Did you mean `prompts`?" in response.text


def test_the_same_key_and_body_make_one_probe(client, body):
    headers = {"Idempotency-Key": "once"}
    first, again = (client.post(PROBES, json=body, headers=headers) for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["Location"] == f"/v1/signal_probes/{again.json()['id']}"
    assert client.post(PROBES, json={**body, "prompts": 5}, headers=headers).status_code == 422
    assert len(client.get(PROBES).json()["data"]) == 1


def test_a_finished_probe_shows_its_report(client, sessions, probe):
    with sessions.begin() as session:
        lease = leases.claim(session, JobId(probe["id"]), owner="w", ttl_s=60, max_failures=3)
        assert lease is not None
        assert signal_probes.size_of(session, lease.job_id) == ProbeSize(prompts=32, samples=8)
    report = make_report(ALWAYS, NEVER, MIXED)
    publish_report(sessions, lease, report)
    shown = client.get(f"{PROBES}/{probe['id']}").json()
    assert (shown["status"], shown["attempt"]) == ("succeeded", 1)
    assert shown["report"] == report.model_dump(mode="json")
    assert shown["gpu_seconds"] > 0


def test_a_failed_probe_says_why(client, sessions, store, probe):
    run = Run.claim(sessions, store, probe["id"])
    error = {"code": "model_unusable", "message": "It is broken.", "param": None, "fix": "Use another."}
    with sessions.begin() as session:
        leases.finish(
            session,
            run.lease,
            JobStatus.FAILED,
            message="It is broken.",
            reason=StatusReason.MODEL_UNUSABLE,
            error=error,
        )
    shown = client.get(f"{PROBES}/{probe['id']}").json()
    assert (shown["status"], shown["status_reason"], shown["error"]) == ("failed", "model_unusable", error)
    assert shown["report"] is None


def test_a_probe_is_cancelled_once(client, probe):
    cancelled = client.post(f"{PROBES}/{probe['id']}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    again = client.post(f"{PROBES}/{probe['id']}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "signal_probe_not_cancellable")


def test_probes_are_listed_newest_first_and_by_status(client, body, probe):
    later = client.post(PROBES, json=body).json()
    client.post(f"{PROBES}/{probe['id']}/cancel")
    assert [one["id"] for one in client.get(PROBES).json()["data"]] == [later["id"], probe["id"]]
    assert [one["id"] for one in client.get(PROBES, params={"status": "queued"}).json()["data"]] == [later["id"]]
    page = client.get(PROBES, params={"limit": 1}).json()
    assert page["has_more"]
    assert [one["id"] for one in client.get(PROBES, params={"after": page["last_id"]}).json()["data"]] == [probe["id"]]


def test_no_operation_of_jobs_knows_a_probe_and_none_of_probes_a_job(client, submit, probe):
    job_id = submit()["id"]
    assert [job["id"] for job in client.get(JOBS).json()["data"]] == [job_id]
    gets = ("", "/events", "/metrics", "/rollouts?step=1", "/checkpoints", "/diagnostics", "/artifacts", "/results")
    for path in gets:
        assert client.get(f"{JOBS}/{probe['id']}{path}").status_code == 404, path
    for wish in ("cancel", "pause", "resume"):
        assert client.post(f"{JOBS}/{probe['id']}/{wish}").status_code == 404, wish
    assert client.get(f"{PROBES}/{job_id}").json()["error"]["code"] == "signal_probe_not_found"
    assert client.post(f"{PROBES}/{job_id}/cancel").status_code == 404
    assert [one["id"] for one in client.get(PROBES).json()["data"]] == [probe["id"]]


def test_a_probe_of_somebody_else_is_not_there(other_tenant, probe):
    assert other_tenant.get(PROBES).json()["data"] == []
    assert other_tenant.get(f"{PROBES}/{probe['id']}").status_code == 404
    assert other_tenant.post(f"{PROBES}/{probe['id']}/cancel").status_code == 404


def test_a_file_cannot_be_deleted_while_a_probe_needs_it(client, body, probe):
    refused = client.delete(f"/v1/files/{body['training_file']}")
    assert refused.json()["error"]["code"] == "file_in_use"
    client.post(f"{PROBES}/{probe['id']}/cancel")
    assert client.delete(f"/v1/files/{body['training_file']}").status_code == 200


def test_a_dry_run_starts_a_probe_where_that_is_asked_for(client, body):
    plain = client.post(f"{JOBS}?dry_run=true", json=body)
    assert plain.json()["signal_probe"] is None
    assert client.get(PROBES).json()["data"] == []
    asked = client.post(f"{JOBS}?dry_run=true&signal_probe=true", json=body)
    assert asked.status_code == 200
    (probe,) = client.get(PROBES).json()["data"]
    assert asked.json() == {**plain.json(), "signal_probe": probe["id"], "warnings": asked.json()["warnings"]}
    assert asked.headers["ETag"] == plain.headers["ETag"]
    assert client.get(JOBS).json()["data"] == []
    created = client.post(JOBS, json=body, headers={"If-Match": asked.headers["ETag"]})
    assert created.status_code == 201


def test_the_same_key_makes_one_probe_of_a_dry_run_and_keeps_its_etag(client, body):
    url, headers = f"{JOBS}?dry_run=true&signal_probe=true", {"Idempotency-Key": "once"}
    first, again = (client.post(url, json=body, headers=headers) for _ in range(2))
    assert first.json() == again.json()
    assert first.headers["ETag"] == again.headers["ETag"]
    assert len(client.get(PROBES).json()["data"]) == 1


def test_a_probe_of_a_job_goes_with_a_dry_run_only(client, body):
    refused = client.post(f"{JOBS}?signal_probe=true", json=body)
    assert refused.status_code == 422
    assert problems(refused) == {"signal_probe": "conflicting_fields"}
    assert client.get(JOBS).json()["data"] == client.get(PROBES).json()["data"] == []
