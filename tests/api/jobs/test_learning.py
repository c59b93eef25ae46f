"""`GET .../learning`: which prompts could teach, and what was paid for those that could not."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.db import leases, progress
from core.db.session import Sessions
from core.settings import Settings
from core.signal import GroupOutcome
from core.storage.store import ObjectStore
from tests.api.jobs.runs import Run

PHASES = {"phase/generation_s": 6.0, "phase/reward_s": 2.0, "phase/forward_s": 2.0, "phase/total_s": 10.0}
GPUS, USD_PER_HOUR = 2, 360.0


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"gpus": GPUS, "gpu_price_usd_per_hour": USD_PER_HOUR})


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


def test_the_price_is_of_all_the_gpus_that_the_job_holds(
    client: TestClient, sessions: Sessions, store: ObjectStore, submit: Callable[..., dict[str, Any]]
) -> None:
    for gpus, usd in [(1, 0.4), (GPUS, 0.8)]:
        run = Run.claim(sessions, store, submit(resources={"gpus": gpus})["id"], gpus=gpus)
        learn(run, 1, silent=0.5, mixed=[7], all_right=[9])
        found = read(client, run)
        assert (found["bill"]["without_gradient_s"], found["usd_without_gradient"]) == (4.0, usd)


def test_it_is_the_owners_alone(other_tenant: TestClient, run: Run) -> None:
    response = other_tenant.get(f"{run.path}/learning")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "job_not_found")
