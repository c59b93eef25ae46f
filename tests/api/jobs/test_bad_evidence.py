"""Evidence that says nothing is answered as such: no held-out tasks, two of them, no grade, no number."""

from typing import Any

from fastapi.testclient import TestClient

from tests.api.jobs.runs import Run
from tests.unit.test_verdict import RIGHT, UNGRADED, WRONG, evaluation


def learning(client: TestClient, run: Run) -> list[str]:
    return [finding["code"] for finding in get(client, run, "diagnostics")["learning"]]


def get(client: TestClient, run: Run, what: str) -> dict[str, Any]:
    response = client.get(f"{run.path}/{what}")
    assert response.status_code == 200, response.text
    return dict(response.json())


def test_without_an_evaluation_the_list_is_empty_and_a_comparison_names_what_is_missing(
    client: TestClient, run: Run
) -> None:
    assert get(client, run, "evaluations")["data"] == []
    response = client.get(f"{run.path}/comparison")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "evaluation_not_found")


def test_two_tasks_are_compared_and_said_to_show_nothing(client: TestClient, run: Run) -> None:
    run.evaluate("baseline", evaluation([WRONG, WRONG]))
    run.evaluate("final", evaluation([RIGHT, RIGHT]))
    verdict = get(client, run, "comparison")["verdict"]
    assert (verdict["outcome"], verdict["fixed"]) == ("no_significant_change", 2)
    assert "2 tasks are too few" in verdict["sentence"]
    assert learning(client, run) == ["few_held_out_tasks"]


def test_where_no_answer_has_a_grade_no_rate_and_no_verdict_is_made_up(client: TestClient, run: Run) -> None:
    for name in ("baseline", "final"):
        run.evaluate(name, evaluation([UNGRADED] * 20))
    scores = get(client, run, "evaluations")["data"]
    assert [(one["greedy"]["n"], one["greedy"]["pass_rate"], one["greedy"]["errors"]) for one in scores] == [
        (0, None, 20)
    ] * 2
    verdict = get(client, run, "comparison")["verdict"]
    assert (verdict["outcome"], verdict["p_value"]) == ("not_comparable", None)
    assert verdict["sentence"] == "Not comparable: only 0 of 20 tasks could be graded both times."
    assert learning(client, run) == ["held_out_ungraded"]


def test_metrics_that_are_no_numbers_are_null_and_said(client: TestClient, run: Run) -> None:
    for step in range(1, 16):
        run.step(step, loss=None, grad_norm=None, reward=None, **{"signal/silent_share": None, "phase/total_s": None})
    assert get(client, run, "metrics")["data"][0]["metrics"]["loss"] is None
    assert learning(client, run) == ["not_a_number"]
    assert get(client, run, "learning")["bill"] is None
