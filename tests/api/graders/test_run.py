"""`graders/run` and `graders/validate`: what they answer about good graders, broken ones, and impossible ones."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.forms import REWARD, problems

pytestmark = pytest.mark.usefixtures("grading_worker")

RUN = "/v1/fine_tuning/alpha/graders/run"
VALIDATE = "/v1/fine_tuning/alpha/graders/validate"
ERRORS = {
    "formula_parse_error", "sample_parse_error", "truncated_observation_error", "unresponsive_reward_error",
    "invalid_variable_error", "other_error", "python_grader_server_error", "python_grader_server_error_type",
    "python_grader_runtime_error", "python_grader_runtime_error_details", "model_grader_server_error",
    "model_grader_refusal_error", "model_grader_parse_error", "model_grader_server_error_details",
}  # fmt: skip
CHECK = {"type": "string_check", "name": "check", "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
SIMILAR = {"type": "text_similarity", "input": "{{sample.output_text}}", "reference": "{{item.answer}}"}


def python(source: str, name: str = "mine") -> dict[str, Any]:
    return {"type": "python", "name": name, "source": source}


def run(client: TestClient, grader: dict[str, Any], sample: str = "4", **item: Any) -> dict[str, Any]:
    response = client.post(RUN, json={"grader": grader, "item": {"answer": "4", **item}, "model_sample": sample})
    assert response.status_code == 200, response.text
    return dict(response.json())


def raised(reply: dict[str, Any]) -> set[str]:
    return {name for name, value in reply["metadata"]["errors"].items() if value is True}


def test_the_reply_has_openais_shape_to_the_letter_and_ours_beside_it(client: TestClient) -> None:
    reply = run(client, {**CHECK, "operation": "eq"})
    assert set(reply["metadata"]["errors"]) == ERRORS
    assert raised(reply) == set()
    del reply["metadata"]["errors"]
    assert reply["metadata"].pop("execution_time") >= 0
    assert reply == {
        "reward": 1.0,
        "metadata": {
            "name": "check", "type": "string_check", "scores": {}, "token_usage": None, "sampled_model_name": None,
        },
        "sub_rewards": {},
        "model_grader_token_usage_per_model": {},
        "outcome": "scored", "message": None, "traceback": None, "output": "",
    }  # fmt: skip


@pytest.mark.parametrize(("operation", "sample", "reward"), [("eq", "5", 0.0), ("ne", "5", 1.0), ("like", "x4x", 1.0)])
def test_a_string_check_compares(client: TestClient, operation: str, sample: str, reward: float) -> None:
    assert run(client, {**CHECK, "operation": operation}, sample)["reward"] == reward


def test_text_similarity_measures(client: TestClient) -> None:
    grader = {**SIMILAR, "evaluation_metric": "fuzzy_match"}
    assert run(client, grader, "fourteen", answer="fourteen")["reward"] == 1.0
    assert 0 < run(client, grader, "fourteen", answer="fifteen")["reward"] < 1


@pytest.mark.parametrize(
    "source",
    [
        "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])\n",
        "def reward(completion, answer):\n    return completion == answer\n",
        "def f(completions, answer):\n    return [float(a == b) for a, b in zip(completions, answer)]\n",
        "def compute_score(data_source, solution_str, ground_truth):\n    return float(solution_str == ground_truth)\n",
        "async def f(completions, answer):\n    return [float(a == b) for a, b in zip(completions, answer)]\n",
    ],
)
def test_source_runs_in_every_form(client: TestClient, source: str) -> None:
    reply = run(client, python(source), data_source="x", ground_truth="4")
    assert (reply["reward"], reply["message"]) == (1.0, None)


def test_the_prompt_of_the_item_reaches_the_source_as_in_a_data_set(client: TestClient) -> None:
    source = "def reward(completion, prompt):\n    return float(prompt == 'What is it?')\n"
    assert run(client, python(source), prompt=[{"role": "user", "content": "What is it?"}])["reward"] == 1.0
    assert run(client, python(source), question="What is it?")["reward"] == 1.0


def test_a_multi_grader_calculates_from_its_graders(client: TestClient) -> None:
    grader = {
        "type": "multi",
        "name": "both",
        "graders": {
            "exact": {**CHECK, "operation": "eq"},
            "brief": python("def grade(sample, item):\n    return 0.5\n"),
        },
        "calculate_output": "0.8 * exact + 0.2 * brief",
    }
    reply = run(client, grader)
    assert reply["reward"] == pytest.approx(0.9)
    assert reply["sub_rewards"] == {"exact": 1.0, "brief": 0.5}
    assert (reply["metadata"]["name"], reply["metadata"]["type"]) == ("both", "multi")


def test_the_rewards_of_a_job_are_tried_as_the_job_would_count_them(client: TestClient) -> None:
    reward = client.post("/v1/rewards", json={"name": "exact", "source": REWARD}).json()["id"]
    gated = {"reward": reward, "weight": 2.0, "gate": {"reward": "contains"}}
    contains = {"builtin": "contains", "column": "answer", "weight": 0.5}
    grader = {"type": "podium", "rewards": [contains, gated]}
    assert run(client, grader, "4")["reward"] == 2.5
    assert run(client, grader, "5")["reward"] == 0.0
    assert run(client, grader, "4")["sub_rewards"] == {"contains": 1.0, "exact": 1.0}


def test_numbers_that_a_reward_reports_are_scores(client: TestClient) -> None:
    source = "def reward(completion):\n    print('hello')\n    return {'score': 0.5, 'words': 3}\n"
    reply = run(client, python(source))
    assert (reply["reward"], reply["metadata"]["scores"], reply["output"]) == (0.5, {"words": 3.0}, "hello\n")


@pytest.mark.parametrize(
    ("source", "flag", "outcome"),
    [
        ("def grade(sample, item):\n    return item['nothing']\n", "python_grader_runtime_error", "user_error"),
        ("def grade(sample, item):\n    return 'much'\n", "python_grader_runtime_error", "user_error"),
        ("1 / 0\ndef grade(sample, item):\n    return 1\n", "python_grader_runtime_error", "user_error"),
        (
            "import os\ndef grade(sample, item):\n    os._exit(3)\n",
            "python_grader_server_error",
            "infrastructure_error",
        ),
    ],
)
def test_what_source_does_wrong_is_a_flag_and_never_a_number(
    client: TestClient, source: str, flag: str, outcome: str
) -> None:
    reply = run(client, python(source))
    assert (reply["reward"], raised(reply), reply["outcome"]) == (None, {flag}, outcome)
    assert reply["message"]


def test_what_was_raised_is_told_with_its_line(client: TestClient) -> None:
    reply = run(client, python("def grade(sample, item):\n    return item['nothing']\n"))
    details = reply["metadata"]["errors"]["python_grader_runtime_error_details"]
    assert "KeyError" in details
    assert "line 2" in details


def test_source_that_hangs_is_unresponsive(client: TestClient) -> None:
    reply = run(client, python("def grade(sample, item):\n    while True: pass\n"))
    assert (reply["reward"], raised(reply)) == (None, {"unresponsive_reward_error"})


def test_no_answer_is_no_error(client: TestClient) -> None:
    reply = run(client, python("def grade(sample, item):\n    return None\n"))
    assert (reply["reward"], raised(reply), reply["outcome"]) == (None, set(), "no_answer")


def test_a_template_that_names_what_is_not_there_is_an_invalid_variable(client: TestClient) -> None:
    reply = run(client, {**CHECK, "reference": "{{item.answr}}", "operation": "eq"})
    assert (reply["reward"], raised(reply)) == (None, {"invalid_variable_error"})


def test_a_sample_that_is_not_json_where_json_is_read_scores_0_and_is_told(client: TestClient) -> None:
    reply = run(client, {**CHECK, "input": "{{sample.output_json.answer}}", "operation": "eq"}, "four")
    assert (reply["reward"], raised(reply)) == (0.0, {"sample_parse_error"})


def test_a_formula_without_a_value_is_a_formula_error(client: TestClient) -> None:
    grader = {"type": "multi", "graders": {"a": {**CHECK, "operation": "eq"}}, "calculate_output": "1 / a"}
    reply = run(client, grader, "5")
    assert (reply["reward"], raised(reply)) == (None, {"formula_parse_error"})


def test_a_multi_grader_with_a_broken_one_tells_of_that_one(client: TestClient) -> None:
    broken = python("def grade(sample, item):\n    raise ValueError('no')\n")
    grader = {"type": "multi", "graders": {"a": broken, "b": {**CHECK, "operation": "eq"}}, "calculate_output": "a + b"}
    reply = run(client, grader)
    assert (reply["reward"], raised(reply)) == (None, {"python_grader_runtime_error"})
    assert reply["sub_rewards"] == {"a": None, "b": 1.0}
    assert reply["message"] == "ValueError: no"


@pytest.mark.parametrize("path", [RUN, VALIDATE])
@pytest.mark.parametrize(
    ("grader", "field", "code"),
    [
        ({"type": "score_model", "name": "a", "input": [], "model": "m"}, "grader", "grader_not_supported"),
        ({"type": "label_model", "name": "a"}, "grader", "grader_not_supported"),
        ({"type": "vibes"}, "grader", "grader_not_supported"),
        ({**SIMILAR, "evaluation_metric": "cosine"}, "grader.evaluation_metric", "metric_not_supported"),
        (python("def grade(sample:\n"), "grader.source", "syntax_error"),
        (python("import torch\ndef grade(sample, item):\n    return 1\n"), "grader.source", "unknown_import"),
        ({"type": "podium", "rewards": []}, "grader.rewards", "no_rewards"),
        ({"type": "podium", "rewards": [{"reward": "rew-none"}]}, "grader.rewards[0].reward", "reward_not_found"),
        ({"type": "podium", "rewards": [{"builtin": "exact_mach"}]}, "grader.rewards[0].builtin", "unknown_builtin"),
        (
            {"type": "multi", "graders": {"a": {**CHECK, "operation": "eq"}}, "calculate_output": "b"},
            "grader",
            "invalid_formula",
        ),
    ],
)
def test_what_can_be_seen_to_be_wrong_is_refused_with_a_fix(
    client: TestClient, path: str, grader: dict[str, Any], field: str, code: str
) -> None:
    body = {"grader": grader, **({"model_sample": "4"} if path == RUN else {})}
    response = client.post(path, json=body)
    assert response.status_code == (404 if code == "reward_not_found" else 422), response.text
    assert problems(response) == {field: code}
    assert response.json()["error"]["fix"]


def test_a_reward_of_another_tenant_cannot_be_tried(client: TestClient, other_tenant: TestClient) -> None:
    reward = client.post("/v1/rewards", json={"name": "exact", "source": REWARD}).json()["id"]
    grader = {"type": "podium", "rewards": [{"reward": reward}]}
    response = other_tenant.post(RUN, json={"grader": grader, "model_sample": "4"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "reward_not_found")


def test_a_good_grader_is_valid_and_comes_back_with_its_defaults(client: TestClient) -> None:
    good = python("def grade(sample, item):\n    return 1.0\n")
    for grader, whole in (
        (good, good),
        ({**CHECK, "operation": "eq"}, {**CHECK, "operation": "eq"}),
        ({**SIMILAR, "evaluation_metric": "bleu"}, {**SIMILAR, "evaluation_metric": "bleu", "name": "grader"}),
    ):
        response = client.post(VALIDATE, json={"grader": grader})
        assert response.status_code == 200, response.text
        assert response.json() == {"grader": whole}


def test_source_that_does_not_load_is_not_valid(client: TestClient) -> None:
    response = client.post(VALIDATE, json={"grader": python("1 / 0\ndef grade(sample, item):\n    return 1\n")})
    assert response.status_code == 422
    assert problems(response) == {"grader": "load_error"}
    assert "ZeroDivisionError" in response.json()["error"]["message"]


def test_source_that_a_reinforcement_job_would_not_take_is_not_valid(client: TestClient) -> None:
    response = client.post(VALIDATE, json={"grader": python("def reward(completion):\n    return 1\n")})
    assert (response.status_code, problems(response)) == (422, {"grader.source": "no_entry_point"})
