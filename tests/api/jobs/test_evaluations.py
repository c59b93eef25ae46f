"""Evaluations of a job, and the verdict on any two of them, of one job or of two."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.db.session import Sessions
from core.storage.store import ObjectStore
from tests.api.forms import upload
from tests.api.jobs.conftest import upload_reward
from tests.api.jobs.runs import Run
from tests.unit.test_verdict import RIGHT, UNGRADED, WRONG, evaluation

Submit = Callable[..., dict[str, Any]]


@pytest.fixture
def evaluated(run: Run) -> Run:
    run.evaluate("baseline", evaluation([WRONG] * 20))
    run.evaluate("step-2", evaluation([RIGHT] * 15 + [WRONG] * 5, step=2))
    run.evaluate("final", evaluation([RIGHT] * 18 + [WRONG] * 2, step=4))
    return run


def compare(client: TestClient, run: Run, **query: str) -> dict[str, Any]:
    response = client.get(f"{run.path}/comparison", params=query)
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_evaluations_come_in_the_order_in_which_they_were_taken(client: TestClient, evaluated: Run) -> None:
    listed = client.get(f"{evaluated.path}/evaluations").json()["data"]
    assert [(one["name"], one["step"], one["greedy"]["passed"]) for one in listed] == [
        ("baseline", 0, 0),
        ("step-2", 2, 15),
        ("final", 4, 18),
    ]


def test_the_best_so_far_is_named_by_the_decoding_that_the_job_is_judged_by(client: TestClient, run: Run) -> None:
    run.evaluate("baseline", evaluation([WRONG] * 20))
    run.evaluate("step-2", evaluation([RIGHT] * 10 + [UNGRADED] * 10, step=2))
    run.evaluate("step-4", evaluation([RIGHT] * 18 + [WRONG] * 2, step=4))
    run.evaluate("step-6", evaluation([RIGHT] * 19 + [WRONG], step=6))
    run.evaluate("step-8", evaluation([RIGHT] * 19 + [WRONG], step=8))
    listed = client.get(f"{run.path}/evaluations").json()
    assert listed["decoding"] == "greedy"
    assert listed["best"] == "step-6", "the earlier of two; half of step-2 could not be graded, so it has no rank"


def test_before_the_first_evaluation_none_is_best(client: TestClient, run: Run) -> None:
    listed = client.get(f"{run.path}/evaluations").json()
    assert (listed["best"], listed["data"]) == (None, [])


def test_unasked_the_comparison_is_the_jobs_own_verdict(client: TestClient, evaluated: Run) -> None:
    found = compare(client, evaluated)
    assert (found["before"]["evaluation"], found["after"]["evaluation"]) == ("baseline", "final")
    assert (found["verdict"]["outcome"], found["verdict"]["fixed"]) == ("improved", 18)


def test_any_checkpoint_can_be_held_against_any_other(client: TestClient, evaluated: Run) -> None:
    found = compare(client, evaluated, before="step-2", after="final")
    assert (found["before"]["step"], found["after"]["step"]) == (2, 4)
    assert (found["verdict"]["outcome"], found["verdict"]["fixed"]) == ("no_significant_change", 3)


@pytest.fixture
def other(client: TestClient, submit: Submit, sessions: Sessions, store: ObjectStore) -> Callable[..., Run]:
    """A second job that solved half of the tasks, with some fields changed."""

    def make(**changes: Any) -> Run:
        run = Run.claim(sessions, store, submit(**changes)["id"])
        run.evaluate("final", evaluation([RIGHT] * 10 + [WRONG] * 10, step=4))
        return run

    return make


def test_two_jobs_on_the_same_tasks_are_compared(client: TestClient, evaluated: Run, other: Callable[..., Run]) -> None:
    found = compare(client, evaluated, against=(first := other()).job_id, before="final")
    assert (found["before"]["job_id"], found["after"]["job_id"]) == (first.job_id, evaluated.job_id)
    assert (found["verdict"]["outcome"], found["verdict"]["fixed"], found["verdict"]["broken"]) == ("improved", 8, 0)


def test_jobs_with_different_rewards_are_not_compared(
    client: TestClient, evaluated: Run, other: Callable[..., Run]
) -> None:
    reward = upload_reward(client, "def reward(completion, answer):\n    return 1.0\n", "kind")
    method = {"type": "grpo", "grpo": {"rewards": [{"reward": reward}]}}
    found = compare(client, evaluated, against=other(method=method).job_id, before="final")
    assert found["verdict"]["outcome"] == "not_comparable"
    assert "different rewards" in found["verdict"]["sentence"]


@pytest.mark.parametrize(
    ("changes", "decoding", "is_compared"),
    [
        ({"evaluation": {"temperature": 0.3}}, "sampled", False),
        ({"hyperparameters": {"temperature": 0.3}}, "sampled", False),
        ({"hyperparameters": {"top_p": 0.5}}, "sampled", False),
        ({"hyperparameters": {"temperature": 0.3}, "evaluation": {"temperature": 1.0}}, "sampled", True),
        ({"evaluation": {"temperature": 0.3}, "hyperparameters": {"top_p": 0.5}}, "greedy", True),
    ],
)
def test_sampled_answers_are_compared_where_they_were_sampled_alike(
    client: TestClient,
    evaluated: Run,
    other: Callable[..., Run],
    body: dict[str, Any],
    changes: dict[str, Any],
    decoding: str,
    is_compared: bool,
) -> None:
    method = copy.deepcopy(body["method"])
    for part, values in changes.items():
        method["grpo"][part] = method["grpo"].get(part, {}) | values
    found = compare(client, evaluated, against=other(method=method).job_id, before="final", decoding=decoding)
    assert (found["verdict"]["outcome"] != "not_comparable") is is_compared
    assert ("different temperatures" not in found["verdict"]["sentence"]) is is_compared


def test_what_was_never_taken_is_named(client: TestClient, evaluated: Run) -> None:
    response = client.get(f"{evaluated.path}/comparison", params={"after": "step-3"})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (404, "evaluation_not_found", "after")


def test_evaluations_are_the_owners_alone(
    client: TestClient, other_tenant: TestClient, evaluated: Run, other: Callable[..., Run]
) -> None:
    for path in ("evaluations", "comparison"):
        assert other_tenant.get(f"{evaluated.path}/{path}").json()["error"]["code"] == "job_not_found"
    assert client.get(f"{evaluated.path}/comparison", params={"against": "ftjob-none"}).status_code == 404


def test_jobs_with_other_held_out_data_are_not_compared_though_their_prompts_are_the_same(
    client: TestClient, evaluated: Run, other: Callable[..., Run]
) -> None:
    """Another right answer to the same prompt is another task."""
    data = "".join(json.dumps({"prompt": f"{n} + {n}?", "answer": "?"}) + "\n" for n in range(20)).encode()
    file_id = upload(client, data).json()["id"]
    found = compare(client, evaluated, against=other(validation_file=file_id).job_id, before="final")
    assert found["verdict"]["outcome"] == "not_comparable"
    assert "different data" in found["verdict"]["sentence"]


def test_an_evaluation_with_more_errors_than_the_job_allows_is_not_judged(
    client: TestClient, submit: Submit, body: dict[str, Any], sessions: Sessions, store: ObjectStore
) -> None:
    body["method"]["grpo"]["grading"] = {"max_error_share": 0.05}
    run = Run.claim(sessions, store, submit(method=body["method"])["id"])
    final = evaluation([RIGHT] * 18 + [UNGRADED] * 2, step=4)
    failed = [
        task.model_copy(update={"greedy": task.greedy.model_copy(update={"error": "KeyError: 'answer'"})})
        for task in final.tasks[18:]
    ]
    run.evaluate("baseline", evaluation([WRONG] * 20))
    run.evaluate("final", final.model_copy(update={"tasks": (*final.tasks[:18], *failed)}))
    verdict = compare(client, run)["verdict"]
    assert verdict["outcome"] == "not_comparable"
    assert "more than 5% of the answers of `final` could not be graded" in verdict["sentence"]
