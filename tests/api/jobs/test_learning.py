"""`GET .../learning`: which prompts could teach, and what was paid for those that could not."""

from typing import Any

from fastapi.testclient import TestClient

from core.db import leases, progress
from core.signal import GroupOutcome
from tests.api.jobs.runs import Run

PHASES = {"phase/generation_s": 6.0, "phase/reward_s": 2.0, "phase/forward_s": 2.0, "phase/total_s": 10.0}


def learn(run: Run, step: int, *, silent: float, **rows: list[int]) -> None:
    with run.sessions.begin() as session:
        leases.hold(session, run.lease)
        progress.add_groups(session, run.lease, step, {GroupOutcome(name): lines for name, lines in rows.items()})
    run.step(step, **PHASES, **{"signal/silent_share": silent, "fast/rollouts_skipped": 4.0, "grad_norm": 0.1})


def read(client: TestClient, run: Run, **query: int) -> dict[str, Any]:
    response = client.get(f"{run.path}/learning", params=query)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_before_the_first_step_there_is_nothing_to_say(client: TestClient, run: Run) -> None:
    found = read(client, run)
    assert (found["prompts"]["seen"], found["windows"], found["bill"]) == (0, [], None)
    assert found["usd_without_gradient"] is None


def test_prompts_windows_and_bill_of_all_steps_or_some(client: TestClient, run: Run) -> None:
    learn(run, 1, silent=0.5, mixed=[7], all_right=[9])
    learn(run, 2, silent=1.0, all_right=[7, 9])
    whole, late = read(client, run), read(client, run, from_step=2)
    assert whole["prompts"]["ever_mixed"] == {"prompts": 1, "rows": [7]}
    assert [(one["from_step"], one["mixed"]) for one in whole["windows"]] == [(1, 1), (2, 0)]
    assert (whole["bill"]["seconds"], whole["bill"]["without_gradient_s"]) == (20, 12)
    assert late["prompts"]["ever_mixed"]["prompts"] == 0
    assert late["prompts"]["always_right"]["rows"] == [7, 9]
    assert late["bill"]["seconds"] == 10
    assert read(client, run, to_step=1)["prompts"]["always_right"]["rows"] == [9]


def test_what_a_later_attempt_does_again_counts_once(client: TestClient, run: Run) -> None:
    learn(run, 1, silent=0.5, mixed=[7], all_right=[9])
    learn(run, 2, silent=0.5, mixed=[7], all_wrong=[9])
    second = run.again()
    second.resume_from(1)
    assert read(client, second)["prompts"]["never_mixed"]["prompts"] == 0, "the second step is superseded"
    learn(second, 2, silent=0.0, mixed=[7, 9])
    found = read(client, second)
    assert found["prompts"]["ever_mixed"]["rows"] == [7, 9]
    assert sum(one["groups"] for one in found["windows"]) == 4


def test_it_is_the_owners_alone(other_tenant: TestClient, run: Run) -> None:
    response = other_tenant.get(f"{run.path}/learning")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")
