"""`GET .../diagnostics`: what a job waits for in every status, read from a real ledger."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.activity import Activity
from core.db import events, jobs, leases
from core.db.session import Sessions
from tests.api.jobs.runs import ADAPTER, Run
from tests.factories import expire

JOBS = "/v1/fine_tuning/jobs"
Submit = Callable[..., dict[str, Any]]


def diagnose(client: TestClient, path: str) -> dict[str, Any]:
    response = client.get(f"{path}/diagnostics")
    assert response.status_code == 200, response.text
    return dict(response.json())


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def test_a_queued_job_says_its_place_in_the_queue(client: TestClient, submit: Submit, sessions: Sessions) -> None:
    first, second = submit()["id"], submit()["id"]
    report = diagnose(client, f"{JOBS}/{second}")
    assert report["object"] == "fine_tuning.job.diagnostics"
    assert (report["job_id"], report["status"], report["now"]["waiting_for"]) == (second, "queued", "worker")
    assert report["queue"] == {"jobs_ahead": 1, "last_hinted_at": None}
    assert (report["run"], report["pause"], report["durable_step"], report["findings"]) == (None, None, None, [])
    with sessions.begin() as session:
        jobs.due(session, hint_repeat_s=30)
    client.post(f"{JOBS}/{first}/pause")
    assert diagnose(client, f"{JOBS}/{second}")["queue"]["jobs_ahead"] == 0
    assert diagnose(client, f"{JOBS}/{second}")["queue"]["last_hinted_at"] is not None


def test_a_running_job_says_what_it_does_and_what_is_safe(client: TestClient, run: Run, sessions: Sessions) -> None:
    run.step(1)
    run.checkpoint(1, ADAPTER)
    run.step(2)
    at = diagnose(client, run.path)["at"]
    activity = Activity(phase="generation", for_s=30, step=3, longest_s=20.0, deadline_s=300.0)
    with sessions.begin() as session:
        leases.renew(session, run.lease, ttl_s=60, activity=activity)
    report = diagnose(client, run.path)
    assert report["now"]["waiting_for"] == "trainer"
    assert at - 30 <= report["now"]["since"] <= report["at"] - 30
    assert "Phase generation of step 3" in report["now"]["summary"]
    seen = report["run"]["activity"]
    assert (seen["phase"], seen["step"], seen["longest_s"], seen["deadline_s"]) == ("generation", 3, 20, 300)
    assert seen["for_s"] >= 29
    lease = report["run"]["lease"]
    assert lease["stands"] is True
    assert lease["last_good_at"] <= report["at"] < lease["expires_at"]
    assert (report["newest_step"]["step"], report["durable_step"]["step"], report["steps_at_risk"]) == (2, 1, 1)


def test_a_job_whose_worker_is_gone_waits_for_another(client: TestClient, run: Run, sessions: Sessions) -> None:
    expire(sessions, run.job_id)
    report = diagnose(client, run.path)
    assert report["now"]["waiting_for"] == "worker"
    assert report["run"]["lease"]["stands"] is False
    assert codes(report) == ["lease_expired"]


def test_a_paused_job_waits_for_a_person(client: TestClient, run: Run) -> None:
    run.checkpoint(1, ADAPTER)
    client.post(f"{run.path}/pause")
    assert diagnose(client, run.path)["pause"]["what_to_do"].startswith("Wait")
    run.pause()
    report = diagnose(client, run.path)
    assert (report["now"]["waiting_for"], report["pause"]["safe_step"]) == ("person", 1)
    assert report["pause"]["reason"] == "user_paused"
    client.post(f"{run.path}/resume")
    again = diagnose(client, run.path)
    assert (again["pause"], again["now"]["waiting_for"]) == (None, "worker")
    assert again["now"]["since"] >= report["now"]["since"], "counted from the resume, not from the submit"


def test_what_went_wrong_on_the_way_is_found(client: TestClient, run: Run, sessions: Sessions) -> None:
    run.step(1)
    run.checkpoint(1, ADAPTER)
    run.step(2)
    again = run.again()
    again.resume_from(1)
    again.step(2)
    again.checkpoint(2, ADAPTER)
    again.corrupt(2)
    for number in (1, 2):
        with sessions.begin() as session:
            leases.hold(session, again.lease)
            data = {"rows": number}
            events.add(session, run.job_id, code="rows_left_out", message="Some.", level="warn", data=data)
    found = {finding["code"]: finding for finding in diagnose(client, run.path)["findings"]}
    assert found.keys() == {"checkpoint_corrupt", "preempted", "work_redone", "rows_left_out"}
    assert found["work_redone"]["evidence"] == {"redone_steps": 1, "trained_steps": 3, "share": 0.3333}
    assert found["checkpoint_corrupt"]["evidence"] == {"steps": [2], "newest_whole_step": 1}
    assert (found["rows_left_out"]["count"], found["rows_left_out"]["evidence"]) == (2, {"rows": 2})
    assert all(finding["fix"] and finding["message"] for finding in found.values())


def test_a_job_that_failed_waits_for_nothing_and_says_why(client: TestClient, run: Run) -> None:
    run.fail()
    report = diagnose(client, run.path)
    assert (report["now"]["waiting_for"], report["status_reason"]) == ("nothing", "out_of_memory")
    first = report["findings"][0]
    assert (first["severity"], first["message"], first["fix"]) == ("error", "The GPU is full.", "Use a smaller batch.")


def test_a_run_that_does_not_learn_is_told_why(client: TestClient, run: Run) -> None:
    for step in range(1, 21):
        run.step(step, reward=0.0, **{"signal/silent_share": 1.0, "signal/silent_all_wrong": 1.0})
    (finding,) = diagnose(client, run.path)["learning"]
    assert (finding["code"], finding["severity"], finding["since_step"]) == ("all_wrong", "error", 1)
    assert "no completion reached the pass threshold" in finding["message"]
    assert finding["evidence"] == {"silent_all_wrong": 1.0, "num_generations": 8}
    assert finding["subject"] is None
    newest = client.get(finding["links"]["metrics"]).json()["data"]
    assert [line["step"] for line in newest] == list(range(1, 21))
    assert client.get(finding["links"]["rollouts"]).status_code == 200


def test_a_run_that_learns_is_told_nothing(client: TestClient, run: Run) -> None:
    for step in range(1, 21):
        run.step(step, reward=step / 20, **{"signal/silent_share": 0.3})
    assert diagnose(client, run.path)["learning"] == []


@pytest.mark.parametrize("end", [Run.succeed, lambda run: None])
def test_diagnostics_are_the_owners_alone(
    client: TestClient, other_tenant: TestClient, run: Run, end: Callable[[Run], None]
) -> None:
    end(run)
    assert diagnose(client, run.path)["findings"] == []
    response = other_tenant.get(f"{run.path}/diagnostics")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")
