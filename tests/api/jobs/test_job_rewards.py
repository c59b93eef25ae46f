"""Built-in rewards, gates and OpenAI's graders in the body of a job: what becomes of them, and every clear error."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from core.builtin_rewards.outside import Credentials
from core.db import jobs
from core.db.session import Sessions
from core.ids import JobId
from core.spec import BuiltinReward, Gate, JobSpec, PinnedReward
from tests.api.forms import upload
from tests.api.jobs.conftest import rows, upload_reward

JOBS = "/v1/fine_tuning/jobs"
REWARDS = "method.grpo.rewards"
GRADER = "method.reinforcement.grader"
EXACT = {"builtin": "exact_match", "column": "answer"}
NEAR = {"builtin": "text_similarity", "column": "answer"}
SAME = {"builtin": "string_check", "operation": "eq"}
SECRET = "whsec_" + "QUFB" * 8
PYTHON = {"type": "python", "name": "p", "source": "def grade(sample, item):\n    return 1.0\n"}
CHECK = {
    "type": "string_check",
    "name": "c",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "operation": "eq",
}
ALIKE = {
    "type": "text_similarity",
    "name": "s",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "evaluation_metric": "fuzzy_match",
}

Body = dict[str, Any]


def grpo(body: Body, *rewards: Body) -> Body:
    return {**body, "method": {"type": "grpo", "grpo": {"rewards": list(rewards)}}}


def reinforcement(body: Body, grader: Body) -> Body:
    return {**body, "method": {"type": "reinforcement", "reinforcement": {"grader": grader}}}


def multi(formula: str, **graders: Body) -> Body:
    return {"type": "multi", "name": "both", "graders": graders, "calculate_output": formula}


def created(client: TestClient, sessions: Sessions, body: Body) -> tuple[Body, JobSpec]:
    response = client.post(JOBS, json=body)
    assert response.status_code == 201, response.text
    job = dict(response.json())
    with sessions() as session:
        stored = jobs.get(session, JobId(job["id"]))
        assert stored is not None
        return job, JobSpec.model_validate(stored.spec)


def refused(client: TestClient, body: Body) -> dict[str, tuple[str, str]]:
    """Code and fix by field."""
    response = client.post(JOBS, json=body)
    assert response.status_code == 422, response.text
    return {problem["field"]: (problem["code"], problem["fix"]) for problem in response.json()["error"]["errors"]}


def test_a_built_in_is_pinned_with_its_parameters(client: TestClient, sessions: Sessions, body: Body) -> None:
    body = grpo(body, {"reward": upload_reward(client), "weight": 2}, {**EXACT, "weight": 0.5, "ignore_case": True})
    job, spec = created(client, sessions, body)
    uploaded, builtin = spec.rewards
    assert isinstance(uploaded, PinnedReward)
    assert isinstance(builtin, BuiltinReward)
    assert (builtin.name, builtin.weight, builtin.parameters.columns) == ("exact_match", 0.5, ("answer",))
    assert builtin.parameters.model_dump()["ignore_case"] is True
    assert spec.pass_threshold == 2.5
    assert job["method"]["grpo"]["rewards"][1] == {**EXACT, "weight": 0.5, "ignore_case": True}


def test_penalties_do_not_raise_the_bar_that_a_task_must_pass(
    client: TestClient, sessions: Sessions, body: Body
) -> None:
    body = grpo(body, EXACT, {"builtin": "overlong", "max": 64, "buffer": 16}, {"builtin": "repetition"})
    assert created(client, sessions, body)[1].pass_threshold == 1.0


def test_a_gate_is_kept_with_its_term(client: TestClient, sessions: Sessions, body: Body) -> None:
    gate = {"reward": "format_tags", "at_least": 1}
    _, spec = created(client, sessions, grpo(body, {"builtin": "format_tags"}, {**EXACT, "gate": gate}))
    assert spec.rewards[1].gate == Gate(reward="format_tags", at_least=1.0)


def test_credentials_of_an_endpoint_are_in_no_document(client: TestClient, sessions: Sessions, body: Body) -> None:
    term = {"builtin": "http", "url": "https://g.example/", "secret": SECRET, "headers": {"Authorization": "Bearer t"}}
    job, spec = created(client, sessions, grpo(body, term))
    for document in (json.dumps(job), spec.model_dump_json(), client.get(f"{JOBS}/{job['id']}").text):
        assert SECRET not in document
        assert "Bearer" not in document
    (pinned,) = spec.rewards
    assert isinstance(pinned, BuiltinReward)
    assert pinned.credentials_sha256 is not None
    with sessions() as session:
        kept = jobs.inline_source(session, JobId(job["id"]), "http")
    assert kept is not None
    assert Credentials.model_validate_json(kept) == Credentials(secret=SECRET, headers={"Authorization": "Bearer t"})


@pytest.mark.parametrize(
    ("term", "field", "code", "fix"),
    [
        ({"builtin": "exact_mtach", "column": "answer"}, ".builtin", "unknown_builtin", "Did you mean `exact_match`?"),
        ({"builtin": "magic"}, ".builtin", "unknown_builtin", "There are exact_match, numeric,"),
        ({**EXACT, "ignore_cse": True}, ".ignore_cse", "unknown_field", "Did you mean `ignore_case`?"),
        ({"builtin": "exact_match"}, ".column", "missing_field", "Add"),
        ({"builtin": "regex", "pattern": "("}, ".pattern", "invalid_value", "Change"),
        ({"builtin": "json_schema", "schema": {"type": "obj"}}, ".schema", "invalid_schema", "Write it as JSON Schema"),
        (
            {"builtin": "text_similarity", "column": "answer", "metric": "cosine"},
            ".metric",
            "metric_not_supported",
            "Use",
        ),
        ({"builtin": "formula", "expression": "1 +"}, ".expression", "invalid_value", "Change"),
        ({"builtin": "http", "url": "ftp://x"}, ".url", "invalid_value", "Change"),
        (
            {"builtin": "string_check", "reference": "{{answer}}", "operation": "eq"},
            ".reference",
            "invalid_value",
            "Ch",
        ),
    ],
)
def test_a_built_in_that_is_wrong_is_refused_by_name(
    client: TestClient, body: Body, term: Body, field: str, code: str, fix: str
) -> None:
    ((where, (what, how)),) = refused(client, grpo(body, term)).items()
    assert (where, what) == (f"{REWARDS}[0]{field}", code)
    assert how.startswith(fix)


def test_a_column_that_the_rows_lack_is_named_with_the_nearest(client: TestClient, body: Body) -> None:
    problems = refused(client, grpo(body, {**EXACT, "column": "anwser"}))
    assert set(problems.values()) == {("missing_column", "Did you mean `answer`?")}
    assert set(problems) == {"training_file", "validation_file"}


def test_a_column_that_only_some_rows_have_is_missing_too(client: TestClient, body: Body) -> None:
    body["training_file"] = upload(client, rows(20) + rows(1, first=50, tag="x")).json()["id"]
    problems = refused(client, grpo(body, {"builtin": "http", "url": "https://g.example/", "sends": ["tag"]}))
    assert problems["training_file"][0] == "missing_column"


@pytest.mark.parametrize(
    ("rewards", "field", "fix"),
    [
        ([{**EXACT, "gate": {"reward": "format"}}], "[0].gate.reward", "Before it stand: none."),
        ([{**EXACT, "gate": {"reward": "exact_match"}}], "[0].gate.reward", "Before it stand: none."),
        (
            [{**EXACT, "gate": {"reward": "format_tags"}}, {"builtin": "format_tags"}],
            "[0].gate.reward",
            "Move `format_tags` before this reward.",
        ),
        (
            [EXACT, {"builtin": "json_valid", "gate": {"reward": "exact_mach"}}],
            "[1].gate.reward",
            "Did you mean `exact_match`?",
        ),
        ([EXACT, {"builtin": "formula", "expression": "2 * exact"}], "[1].expression", "Did you mean `exact_match`?"),
    ],
)
def test_gates_and_formulas_name_rewards_before_them(
    client: TestClient, body: Body, rewards: list[Body], field: str, fix: str
) -> None:
    assert refused(client, grpo(body, *rewards)) == {f"{REWARDS}{field}": ("unknown_reward_name", fix)}


@pytest.mark.parametrize(("grader", "builtin"), [(CHECK, "string_check"), (ALIKE, "text_similarity")])
def test_openais_graders_are_built_ins(
    client: TestClient, sessions: Sessions, body: Body, grader: Body, builtin: str
) -> None:
    job, spec = created(client, sessions, reinforcement(body, grader))
    (term,) = spec.rewards
    assert isinstance(term, BuiltinReward)
    assert (term.name, term.parameters.builtin, spec.pass_threshold) == (grader["name"], builtin, 1.0)
    assert job["method"]["reinforcement"]["grader"] == grader


def test_a_multi_grader_is_its_graders_and_a_formula(client: TestClient, sessions: Sessions, body: Body) -> None:
    grader = multi("0.5 * same + 0.3 * code + 0.1 * near", same=CHECK, near=ALIKE, code=PYTHON)
    job, spec = created(client, sessions, reinforcement(body, grader))
    assert [(term.name, term.weight) for term in spec.rewards] == [
        ("same", 0.0),
        ("near", 0.0),
        ("code", 0.0),
        ("both", 1.0),
    ]
    assert spec.pass_threshold == pytest.approx(0.9)
    with sessions() as session:
        assert jobs.inline_source(session, JobId(job["id"]), "code") == PYTHON["source"]


@pytest.mark.parametrize(
    ("grader", "field", "code"),
    [
        (multi("a + b", a=CHECK), "", "invalid_formula"),
        (multi("a +", a=CHECK), "", "invalid_formula"),
        (multi("log(a - 1)", a=CHECK), "", "invalid_formula"),
        (multi("a", **{"a-b": CHECK, "a": CHECK}), ".graders", "invalid_grader_key"),
        (multi("a", a=multi("b", b=CHECK)), ".graders.a", "grader_not_supported"),
        (multi("a", a={"type": "label_model"}), ".graders.a", "grader_not_supported"),
        (multi("a", a={**PYTHON, "source": "def f(): pass"}), ".graders.a.source", "no_entry_point"),
        (multi("a", a={**CHECK, "operation": "is"}), ".graders.a.operation", "invalid_value"),
        ({**ALIKE, "evaluation_metric": "meteor"}, ".evaluation_metric", "metric_not_supported"),
        ({**CHECK, "reference": "{{sample.output_tools}}"}, ".reference", "invalid_value"),
    ],
)
def test_a_grader_that_is_wrong_is_refused_where_it_is(
    client: TestClient, body: Body, grader: Body, field: str, code: str
) -> None:
    ((where, (what, _)),) = refused(client, reinforcement(body, grader)).items()
    assert (where, what) == (f"{GRADER}{field}", code)


def test_a_template_that_reads_a_missing_column_is_refused(client: TestClient, body: Body) -> None:
    problems = refused(client, reinforcement(body, {**CHECK, "reference": "{{item.anwser}}"}))
    assert problems["training_file"] == ("missing_column", "Did you mean `answer`?")


def test_the_rule_on_grading_errors_is_the_jobs_own(client: TestClient, sessions: Sessions, body: Body) -> None:
    rule = {"max_error_share": 0.5, "max_bad_steps": 3}
    asked = grpo(body, EXACT)
    asked["method"]["grpo"]["grading"] = rule
    _, spec = created(client, sessions, asked)
    assert (spec.grading.max_error_share, spec.grading.max_bad_steps) == (0.5, 3)
    _, usual = created(client, sessions, grpo(body, EXACT))
    assert (usual.grading.max_error_share, usual.grading.max_bad_steps) == (0.2, 5)


def test_a_form_can_be_asked_for_and_one_that_does_not_fit_is_named(
    client: TestClient, sessions: Sessions, body: Body
) -> None:
    reward = upload_reward(client, "def score(data_source, solution_str, ground_truth):\n    return 1.0\n")
    columns = {"ground_truth": "4", "data_source": "sums"}
    files = {
        "training_file": upload(client, rows(20, **columns)).json()["id"],
        "validation_file": upload(client, rows(8, first=100, **columns)).json()["id"],
    }

    def form_of(**term: Any) -> str:
        _, spec = created(client, sessions, grpo({**body, **files}, {"reward": reward, **term}))
        assert isinstance(spec.rewards[0], PinnedReward)
        return spec.rewards[0].form

    assert (form_of(), form_of(form="osmosis")) == ("verl", "osmosis")
    problems = refused(client, grpo({**body, **files}, {"reward": reward, "form": "openai"}))
    assert list(problems) == [f"{REWARDS}[0].form"]
