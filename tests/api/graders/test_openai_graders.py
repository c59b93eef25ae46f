"""The official `openai` client runs and validates graders: the running API, a real grading worker, a real broker."""

from collections.abc import Iterator

import openai
import pytest
from fastapi import FastAPI
from openai import OpenAI
from openai.types.fine_tuning.alpha import GraderRunResponse, GraderValidateResponse

from core.db import api_keys
from core.db.session import Sessions
from tests.api.conftest import OURS
from tests.servers.api import running_api

pytestmark = pytest.mark.usefixtures("grading_worker")

EXACT = "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])\n"


@pytest.fixture
def client(app: FastAPI, sessions: Sessions) -> Iterator[OpenAI]:
    with sessions.begin() as session:
        _, secret = api_keys.create(session, tenant_id=OURS, name="openai")
    with running_api(app) as url, OpenAI(base_url=f"{url}/v1", api_key=secret) as client:
        yield client


def test_a_grader_is_run(client: OpenAI) -> None:
    graders = client.fine_tuning.alpha.graders
    grader = {"type": "python", "name": "exact", "source": EXACT}
    reply = graders.run(grader=grader, item={"answer": "4"}, model_sample="4")  # type: ignore[arg-type]
    assert isinstance(reply, GraderRunResponse)
    assert GraderRunResponse.model_validate(reply.to_dict()), "it is the type's own shape, not only near to it"
    assert (reply.reward, reply.metadata.name, reply.metadata.type) == (1.0, "exact", "python")
    assert reply.metadata.errors.python_grader_runtime_error is False
    assert reply.api_model_grader_token_usage_per_model == {}
    assert reply.sub_rewards == {}


def test_a_broken_grader_raises_its_flag(client: OpenAI) -> None:
    grader = {"type": "python", "name": "broken", "source": "def grade(sample, item):\n    return 1 / 0\n"}
    reply = client.fine_tuning.alpha.graders.run(grader=grader, model_sample="4")  # type: ignore[arg-type]
    assert reply.reward is None
    assert reply.metadata.errors.python_grader_runtime_error is True
    assert "ZeroDivisionError" in (reply.metadata.errors.python_grader_runtime_error_details or "")


def test_a_multi_grader_is_run(client: OpenAI) -> None:
    check = {
        "type": "string_check",
        "name": "a",
        "input": "{{sample.output_text}}",
        "reference": "4",
        "operation": "eq",
    }
    grader = {"type": "multi", "name": "m", "graders": {"a": check}, "calculate_output": "a / 2"}
    reply = client.fine_tuning.alpha.graders.run(grader=grader, model_sample="4")  # type: ignore[arg-type]
    assert (reply.reward, reply.sub_rewards) == (0.5, {"a": 1.0})


def test_a_grader_is_validated(client: OpenAI) -> None:
    grader = {"type": "python", "name": "exact", "source": EXACT}
    reply = client.fine_tuning.alpha.graders.validate(grader=grader)  # type: ignore[arg-type]
    assert isinstance(reply, GraderValidateResponse)
    assert reply.grader is not None
    assert reply.grader.to_dict() == grader


def test_a_grader_that_asks_a_model_is_refused_and_the_error_says_why(client: OpenAI) -> None:
    grader = {"type": "score_model", "name": "judge", "model": "gpt-5", "input": []}
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.fine_tuning.alpha.graders.run(grader=grader, model_sample="4")  # type: ignore[arg-type]
    assert caught.value.param == "grader"
    assert "without network" in caught.value.message
