"""Every way a job can be wrong has its own clear error: a code, the field, what to do. All come at once."""

import copy
import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.settings import Settings
from tests.api.forms import problems, upload
from tests.api.jobs.conftest import rows, upload_reward
from tests.model_folders import write_model
from tests.servers.hub import COMMIT, Hub, running_hub

JOBS = "/v1/fine_tuning/jobs"
NUMBERS = "method.grpo.hyperparameters"
GRADER = "method.reinforcement.grader"

Body = dict[str, Any]


def with_change(body: Body, path: str, value: Any) -> Body:
    """A copy with the field at the dotted path set."""
    changed = copy.deepcopy(body)
    *parents, last = path.split(".")
    inner = changed
    for parent in parents:
        inner = inner.setdefault(parent, {})
    inner[last] = value
    return changed


def reinforcement(body: Body, **grader: Any) -> Body:
    grader = {"type": "python", "name": "g", "source": "def grade(sample, item):\n    return 1.0\n", **grader}
    return {**body, "method": {"type": "reinforcement", "reinforcement": {"grader": grader}}}


def refusal(client: TestClient, body: Any, *, status: int = 422) -> Body:
    """The error; whatever is wrong, nothing was created."""
    response = client.post(JOBS, json=body)
    assert response.status_code == status, response.text
    assert client.get(JOBS).json()["data"] == []
    error = dict(response.json()["error"])
    assert all(problem["fix"] for problem in error["errors"])
    assert error["param"] == error["errors"][0]["field"]
    return error


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        (f"{NUMBERS}.num_generations", 1, "invalid_value"),
        (f"{NUMBERS}.num_generations", "eight", "invalid_type"),
        (f"{NUMBERS}.num_generations", [8], "invalid_type"),
        (f"{NUMBERS}.max_steps", 0, "invalid_value"),
        (f"{NUMBERS}.max_steps", 2.5, "invalid_type"),
        (f"{NUMBERS}.max_steps", True, "invalid_type"),
        (f"{NUMBERS}.max_steps", "8", "invalid_type"),
        (f"{NUMBERS}.learning_rate", -1, "invalid_value"),
        (f"{NUMBERS}.temperature", 0, "invalid_value"),
        (f"{NUMBERS}.loss_type", "ppo", "invalid_value"),
        (f"{NUMBERS}.dynamic_sampling", True, "invalid_type"),
        (f"{NUMBERS}.dynamic_sampling.max_extra_batches", 0, "invalid_value"),
        (f"{NUMBERS}.dynamic_sampling.max_extra_batches", 17, "invalid_value"),
        (f"{NUMBERS}.dynamic_sampling.max_batches", 2, "unknown_field"),
        (f"{NUMBERS}.prompt_sampling.floor", 0, "invalid_value"),
        (f"{NUMBERS}.prompt_sampling.floor", 1.1, "invalid_value"),
        (f"{NUMBERS}.prompt_sampling.window", 65, "invalid_value"),
        ("method.grpo.adapter.r", 0, "invalid_value"),
        ("method.grpo.adapter.method", "dora", "invalid_value"),
        ("method.grpo.evaluation.held_out_fraction", 1.5, "invalid_value"),
        ("method.grpo.checkpoints.every_steps", 0, "invalid_value"),
        ("method.grpo.checkpoints.every_minutes", 0, "invalid_value"),
        ("method.grpo.checkpoints.every_minutes", 10_081, "invalid_value"),
        ("method.grpo.checkpoints.every_minutes", "often", "invalid_value"),
        ("method.grpo.checkpoints.every_minutes", True, "invalid_value"),
        ("method.grpo.checkpoints.keep", 0, "invalid_value"),
        ("method.grpo.checkpoints.keep", 1001, "invalid_value"),
        ("method.grpo.checkpoints.keep", "all", "invalid_type"),
        ("method.grpo.rewards", [], "no_rewards"),
        ("method.grpo.watch", [{"json_path": "$.a"}, {"regex": "a"}], "same_name"),
        ("method.grpo.stop.silent_share_above", 1.0, "invalid_value"),
        ("method.grpo.stop.window", 4, "invalid_value"),
        ("method.grpo.stop.then", "cancel", "invalid_value"),
        ("method.grpo.stop.held_out_patience", 0, "invalid_value"),
        ("method.type", "ppo", "invalid_value"),
        ("seed", -1, "invalid_value"),
        ("seed", 2**31, "invalid_value"),
        ("suffix", "a b", "invalid_value"),
        ("suffix", "x" * 65, "invalid_value"),
        ("model", "", "invalid_value"),
        ("model", None, "invalid_type"),
        ("metadata", {f"key{n}": "" for n in range(17)}, "invalid_value"),
        ("metadata.key", "x" * 513, "invalid_value"),
        ("metadata.key", 7, "invalid_type"),
        ("integrations", [{"type": "tensorboard"}] * 2, "same_integration"),
        ("hyperparameters", {"n_epochs": 1}, "deprecated_hyperparameters"),
    ],
)
def test_a_bad_value_is_refused_by_name(client: TestClient, body: Body, path: str, value: Any, code: str) -> None:
    error = refusal(client, with_change(body, path, value))
    assert [(problem["field"], problem["code"]) for problem in error["errors"]] == [(path, code)]


@pytest.mark.parametrize(
    ("watched", "field", "code"),
    [
        ({"json_path": "died"}, "", "invalid_value"),
        ({"regex": "("}, "", "invalid_value"),
        ({"json_path": "$.a", "regex": "a"}, "", "invalid_value"),
        ({"json_path": "$.a", "colunm": "answer"}, ".colunm", "unknown_field"),
        ({"json_path": "$.a", "column": "anwser"}, ".column", "missing_column"),
    ],
)
def test_a_watched_field_that_cannot_be_counted_is_refused(
    client: TestClient, body: Body, watched: Body, field: str, code: str
) -> None:
    error = refusal(client, with_change(body, "method.grpo.watch", [{"regex": "fine"}, watched]))
    (problem,) = error["errors"]
    assert (problem["field"], problem["code"]) == (f"method.grpo.watch[1]{field}", code)
    assert code != "missing_column" or "`answer`" in problem["fix"]


@pytest.mark.parametrize(
    ("integration", "field", "code"),
    [
        ({"type": "trackio", "trackio": {"project": "p"}}, ".type", "integration_not_offered"),
        ({"type": "comet"}, ".type", "invalid_value"),
        ({"type": "wandb"}, "", "integration_incomplete"),
        ({"type": "wandb", "mlflow": {"project": "p"}}, "", "integration_incomplete"),
        ({"type": "wandb", "wandb": {}}, ".wandb.project", "missing_field"),
        ({"type": "trackio", "trackio": {"project": "../../etc"}}, ".trackio.project", "invalid_value"),
        ({"type": "mlflow", "mlflow": {"project": "p", "uri": "http://10.0.0.1"}}, ".mlflow.uri", "unknown_field"),
        ({"type": "wandb", "wandb": {"project": "p", "api_key": "k"}}, ".wandb.api_key", "unknown_field"),
    ],
)
def test_an_integration_that_cannot_be_had_is_refused(
    client: TestClient, body: Body, integration: Body, field: str, code: str
) -> None:
    """Addresses and keys are the operator's: there is no field for them."""
    (problem,) = refusal(client, body | {"integrations": [integration]})["errors"]
    assert (problem["field"], problem["code"]) == (f"integrations[0]{field}", code)
    assert problem["fix"]


@pytest.mark.parametrize("field", ["model", "training_file", "method"])
def test_a_missing_field_is_named(client: TestClient, body: Body, field: str) -> None:
    del body[field]
    assert refusal(client, body)["errors"][0]["code"] == "missing_field"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("training_fil", "training_file"),
        ("method.grpo.reward", "rewards"),
        (f"{NUMBERS}.num_generation", "num_generations"),
        (f"{NUMBERS}.learning_rte", "learning_rate"),
        ("method.grpo.evaluation.every_step", "every_steps"),
        ("method.grpo.checkpoints.every_minute", "every_minutes"),
    ],
)
def test_an_unknown_field_is_refused_with_the_one_that_was_meant(
    client: TestClient, body: Body, path: str, meant: str
) -> None:
    (problem,) = refusal(client, with_change(body, path, 4))["errors"]
    assert (problem["field"], problem["code"]) == (path, "unknown_field")
    assert problem["fix"] == f"Did you mean `{meant}`?"


def test_a_rule_between_fields_lists_what_would_be_valid(client: TestClient, body: Body) -> None:
    error = refusal(
        client, with_change(body, NUMBERS, {"prompts_per_step": 2, "num_generations": 3, "rollouts_per_pass": 4})
    )
    assert error["param"] == NUMBERS
    assert "1, 2, 3, 6" in error["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(client: TestClient, body: Body, number: str) -> None:
    text = json.dumps(with_change(body, f"{NUMBERS}.learning_rate", "NUMBER")).replace('"NUMBER"', number)
    response = client.post(JOBS, content=text, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert list(problems(response)) == [f"{NUMBERS}.learning_rate"]


@pytest.mark.parametrize(
    "path", ["suffix", "model", "training_file", "metadata.key", "method.grpo.adapter.target_modules"]
)
@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_text_that_cannot_be_kept_is_refused(client: TestClient, body: Body, path: str, text: str) -> None:
    value = [text] if path.endswith("modules") else text
    content = json.dumps(with_change(body, path, value))
    response = client.post(JOBS, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 422
    assert response.json()["error"]["param"].startswith(path)


def test_missing_things_and_the_things_of_others_are_the_same_404(
    client: TestClient, other_tenant: TestClient, body: Body
) -> None:
    foreign = upload(other_tenant, rows(20)).json()["id"]
    messages = set()
    for file_id in (foreign, "file-missing", "nonsense"):
        error = refusal(client, {**body, "training_file": file_id}, status=404)
        assert (error["code"], error["param"]) == ("file_not_found", "training_file")
        messages.add(error["message"].replace(file_id, ""))
    assert len(messages) == 1
    reward = with_change(body, "method.grpo.rewards", [{"reward": upload_reward(other_tenant)}])
    error = refusal(client, reward, status=404)
    assert (error["code"], error["param"]) == ("reward_not_found", "method.grpo.rewards[0].reward")


def test_a_reward_version_must_exist(client: TestClient, body: Body) -> None:
    body["method"]["grpo"]["rewards"][0]["version"] = 9
    error = refusal(client, body, status=404)
    assert (error["code"], error["param"]) == ("reward_not_found", "method.grpo.rewards[0].version")


def test_a_deleted_file_is_not_found(client: TestClient, body: Body) -> None:
    client.delete(f"/v1/files/{body['validation_file']}")
    assert refusal(client, body, status=404)["param"] == "validation_file"


def test_a_column_that_the_reward_reads_must_be_in_both_files(client: TestClient, body: Body) -> None:
    source = "def reward(completion, anwser):\n    return 1.0\n"
    body["method"]["grpo"]["rewards"] = [{"reward": upload_reward(client, source)}]
    error = refusal(client, body)
    assert [(p["field"], p["code"]) for p in error["errors"]] == [
        ("training_file", "missing_column"),
        ("validation_file", "missing_column"),
    ]
    assert "`anwser`" in error["message"]
    assert "`answer`" in error["fix"]


def test_a_column_may_be_missing_in_the_held_out_file_alone(client: TestClient, body: Body) -> None:
    source = "def reward(completion, answer, level):\n    return 1.0\n"
    body["method"]["grpo"]["rewards"] = [{"reward": upload_reward(client, source)}]
    body["training_file"] = upload(client, rows(20, level=1)).json()["id"]
    error = refusal(client, body)
    assert (error["code"], error["param"]) == ("missing_column", "validation_file")


def test_one_held_out_task_is_too_few(client: TestClient, body: Body) -> None:
    body["validation_file"] = upload(client, rows(1)).json()["id"]
    error = refusal(client, body)
    assert (error["code"], error["param"]) == ("too_few_held_out_tasks", "validation_file")


def test_one_held_out_task_is_too_few_however_often_it_stands_there(client: TestClient, body: Body) -> None:
    body["validation_file"] = upload(client, rows(1) * 50).json()["id"]
    error = refusal(client, body)
    assert (error["code"], error["param"]) == ("too_few_held_out_tasks", "validation_file")


def test_a_file_of_one_prompt_has_too_few_to_hold_out(client: TestClient, body: Body) -> None:
    del body["validation_file"]
    body["training_file"] = upload(client, rows(1)).json()["id"]
    found = {(problem["field"], problem["code"]) for problem in refusal(client, body)["errors"]}
    assert found == {("training_file", "too_few_held_out_tasks"), ("training_file", "too_few_rows")}


def test_fewer_rows_than_one_step_takes(client: TestClient, body: Body) -> None:
    body["method"]["grpo"]["hyperparameters"] = {"prompts_per_step": 21}
    error = refusal(client, body)
    assert (error["code"], error["param"]) == ("too_few_rows", "training_file")
    assert f"{NUMBERS}.prompts_per_step to at most 20" in error["fix"]


def test_held_out_tasks_are_not_the_training_rows(client: TestClient, body: Body) -> None:
    error = refusal(client, {**body, "validation_file": body["training_file"]})
    assert problems_of(error) == {"validation_file": "same_file"}


def test_held_out_chats_do_not_judge_what_was_trained_on_text(client: TestClient, body: Body) -> None:
    chats = [{"prompt": [{"role": "user", "content": f"Add {n}."}], "answer": "1"} for n in range(20)]
    body["validation_file"] = upload(client, "".join(json.dumps(row) + "\n" for row in chats)).json()["id"]
    error = refusal(client, body)
    assert (error["code"], error["param"]) == ("mixed_prompts", "validation_file")
    assert "messages" in error["message"]
    assert "text" in error["message"]


def test_rewards_that_all_weigh_nothing(client: TestClient, body: Body) -> None:
    body["method"]["grpo"]["rewards"][0]["weight"] = 0
    assert problems_of(refusal(client, body)) == {"method.grpo.rewards": "zero_weights"}


def test_a_run_of_a_million_steps_is_a_mistake(client: TestClient, body: Body) -> None:
    body["method"]["grpo"]["hyperparameters"] = {"n_epochs": 1000, "prompts_per_step": 1, "num_iterations": 16}
    body["training_file"] = upload(client, rows(70)).json()["id"]
    assert problems_of(refusal(client, body)) == {f"{NUMBERS}.n_epochs": "too_many_steps"}


def test_max_steps_and_epochs_exclude_each_other(client: TestClient, body: Body) -> None:
    error = refusal(client, with_change(body, NUMBERS, {"max_steps": 5, "n_epochs": 1}))
    assert error["param"] == NUMBERS


@pytest.mark.parametrize(
    ("grader", "field", "code"),
    [
        ({"source": "def grade(sample, item)\n    return 1"}, f"{GRADER}.source", "syntax_error"),
        ({"source": "def score(sample, item):\n    return 1"}, f"{GRADER}.source", "no_entry_point"),
        ({"source": "def grade(completion):\n    return 1"}, f"{GRADER}.source", "no_entry_point"),
        ({"source": "import torch\ndef grade(sample, item):\n    return 1"}, f"{GRADER}.source", "unknown_import"),
        ({"type": "score_model"}, GRADER, "grader_not_supported"),
        ({"type": "label_model"}, GRADER, "grader_not_supported"),
    ],
)
def test_a_grader_that_cannot_run_is_refused(
    client: TestClient, body: Body, grader: Body, field: str, code: str
) -> None:
    assert problems_of(refusal(client, reinforcement(body, **grader))) == {field: code}


def test_an_image_tag_is_ignored_with_a_warning(client: TestClient, body: Body) -> None:
    preview = client.post(JOBS, params={"dry_run": True}, json=reinforcement(body, image_tag="2025-05-08")).json()
    fields = [warning["field"] for warning in preview["warnings"] if warning["code"] != "report_pending"]
    assert fields == [f"{GRADER}.image_tag"]


@pytest.mark.parametrize("kind", ["supervised", "dpo"])
def test_other_methods_are_refused_with_what_there_is(client: TestClient, body: Body, kind: str) -> None:
    assert problems_of(refusal(client, {**body, "method": {"type": kind, kind: {}}})) == {
        "method": "method_not_supported"
    }


def test_an_unknown_model_comes_with_the_nearest(client: TestClient, body: Body) -> None:
    error = refusal(client, {**body, "model": "podium/tinny"}, status=422)
    assert (error["code"], error["param"]) == ("model_not_allowed", "model")
    assert "`podium/tiny`" in error["fix"]


def test_everything_that_is_wrong_comes_at_once(client: TestClient, body: Body) -> None:
    body["model"] = "podium/tinny"
    body["training_file"] = "file-missing"
    body["validation_file"] = upload(client, rows(1)).json()["id"]
    body["method"]["grpo"]["rewards"] = [
        {"reward": "rew-missing"},
        {"reward": upload_reward(client, "def reward(completion, gold):\n    return 1.0\n")},
    ]
    error = refusal(client, body)
    assert error["code"] == "invalid_request"
    assert problems_of(error) == {
        "model": "model_not_allowed",
        "training_file": "file_not_found",
        "validation_file": "missing_column",
        "method.grpo.rewards[0].reward": "reward_not_found",
    }


def test_a_dry_run_finds_the_same_problems(client: TestClient, body: Body) -> None:
    bad = {**body, "training_file": "file-missing", "model": "podium/tinny"}
    dry = client.post(JOBS, params={"dry_run": True}, json=bad).json()["error"]
    real = client.post(JOBS, json=bad).json()["error"]
    assert dry["errors"] == real["errors"]


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'"text"', b"{", b'{"model": ' + b"[" * 5000])
def test_what_is_no_object_is_refused(client: TestClient, content: bytes) -> None:
    response = client.post(JOBS, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 422


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_wrong_key_is_refused_before_anything_else(anonymous: TestClient, method: str) -> None:
    for headers in ({}, {"Authorization": "Bearer pk_wrong"}):
        response = anonymous.request(method, JOBS, json={"model": 7}, headers=headers)
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "query", [{"limit": 0}, {"limit": 101}, {"limit": "x"}, {"status": "done"}, {"after": "a b"}, {"after": "\0"}]
)
def test_bad_queries_are_refused_by_name(client: TestClient, query: Body) -> None:
    error = client.get(JOBS, params=query)
    assert error.status_code == 422
    assert error.json()["error"]["param"] == next(iter(query))


def test_a_nul_in_a_metadata_filter_or_a_path_is_refused(client: TestClient) -> None:
    assert client.get(JOBS, params={"metadata[a]": "\0"}).status_code == 422
    assert client.get(JOBS, params={"metadata[a\0]": "b"}).status_code in {200, 422}
    assert client.get(f"{JOBS}/ftjob-%00").status_code in {404, 422}


@pytest.fixture
def hub(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub({"acme/base": write_model(tmp_path / "remote")}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


class TestWithAHub:
    """The operator allows models of the Hub."""

    @pytest.fixture
    def settings(self, settings: Settings) -> Settings:
        return settings.model_copy(update={"allow_hub_models": True})

    def test_the_commit_is_pinned_at_admission(self, client: TestClient, body: Body, hub: Hub) -> None:
        spec = client.post(JOBS, json={**body, "model": "acme/base@main"}).json()["spec"]
        assert spec["model"] == {"name": "acme/base", "source": "hub", "revision": COMMIT}

    def test_if_match_notices_a_moved_branch(self, client: TestClient, body: Body, hub: Hub) -> None:
        body["model"] = "acme/base"
        etag = client.post(JOBS, params={"dry_run": True}, json=body).headers["etag"]
        hub.commit = "f" * 40
        assert client.post(JOBS, json=body, headers={"If-Match": etag}).status_code == 412

    def test_a_repeat_with_the_same_key_does_not_ask_the_hub(self, client: TestClient, body: Body, hub: Hub) -> None:
        body["model"] = "acme/base"
        headers = {"Idempotency-Key": "once"}
        first = client.post(JOBS, json=body, headers=headers).json()
        hub.failing_with = HTTPStatus.BAD_GATEWAY
        assert client.post(JOBS, json=body, headers=headers).json() == first

    def test_an_unknown_model_is_a_404(self, client: TestClient, body: Body, hub: Hub) -> None:
        error = refusal(client, {**body, "model": "acme/nothing"}, status=404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")

    def test_a_hub_that_is_away_is_a_503_to_try_again(self, client: TestClient, body: Body, hub: Hub) -> None:
        hub.failing_with = HTTPStatus.BAD_GATEWAY
        response = client.post(JOBS, json={**body, "model": "acme/base"})
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "model_hub_unreachable"
        assert "retry-after" in response.headers

    def test_other_problems_come_before_a_hub_that_is_away(self, client: TestClient, body: Body, hub: Hub) -> None:
        hub.failing_with = HTTPStatus.BAD_GATEWAY
        refusal(client, {**body, "model": "acme/base", "training_file": "file-missing"}, status=404)


def problems_of(error: Body) -> dict[str, str]:
    return {problem["field"]: problem["code"] for problem in error["errors"]}
