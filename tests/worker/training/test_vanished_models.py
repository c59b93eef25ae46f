"""A hub that has the model no more is told from a hub that is away: one waits for a person, the other for time."""

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from huggingface_hub import constants

from core.spec import ModelRef, ModelSource
from tests.factories import make_spec
from tests.servers.hub import COMMIT, Hub, running_hub
from tests.worker.training.runs import Trainers
from worker.run_directory import RunPlan
from worker.training.failures import HubUnreachable, ModelVanished, RunFailed
from worker.training.model import load_tokenizer

MODEL = "acme/base"
PLAN = RunPlan(
    job_id="ftjob-1",
    attempt=1,
    spec=make_spec(model=ModelRef(name=MODEL, source=ModelSource.HUB, revision=COMMIT)),
    model_path=None,
)


@pytest.fixture
def hub(tmp_path: Path, trainers: Trainers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """What the library read from HF_ENDPOINT and HF_HOME when it was imported, for an empty cache and a hub of ours;
    and its pauses between tries take no time.
    """
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with running_hub({MODEL: trainers.model}) as hub:
        point_at(monkeypatch, hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield hub


def point_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def failure(hub: Hub) -> RunFailed:
    with pytest.raises(RunFailed) as raised:
        load_tokenizer(PLAN)
    assert hub.requests, "it was asked"
    return raised.value


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lambda hub: hub.repositories.clear(), id="repository deleted"),
        pytest.param(lambda hub: setattr(hub, "commit", "0" * 40), id="commit rewritten"),
        pytest.param(lambda hub: hub.gated.add(MODEL), id="gated since"),
        pytest.param(lambda hub: setattr(hub, "failing_with", HTTPStatus.FORBIDDEN), id="forbidden since"),
    ],
)
def test_what_the_hub_has_no_more_waits_for_a_person(hub: Hub, lose: Callable[[Hub], None]) -> None:
    lose(hub)
    found = failure(hub)
    assert isinstance(found, ModelVanished), found.message
    assert (found.detail.pauses, found.detail.retryable) == (True, False)


@pytest.mark.parametrize("status", [HTTPStatus.BAD_GATEWAY, HTTPStatus.TOO_MANY_REQUESTS])
def test_a_hub_in_trouble_is_asked_again(hub: Hub, status: HTTPStatus) -> None:
    hub.failing_with = status
    found = failure(hub)
    assert isinstance(found, HubUnreachable), found.message
    assert (found.detail.pauses, found.detail.retryable) == (False, True)


def test_a_hub_that_nobody_can_reach_is_asked_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(HubUnreachable):
        load_tokenizer(PLAN)


def test_who_may_not_ask_a_hub_waits_for_a_person_too(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelVanished, match="HF_HUB_OFFLINE"):
        load_tokenizer(PLAN)
    assert not hub.requests


def test_a_model_in_the_cache_needs_no_hub(hub: Hub) -> None:
    load_tokenizer(PLAN)
    hub.failing_with = HTTPStatus.BAD_GATEWAY
    assert load_tokenizer(PLAN).eos_token == "<|end|>"
