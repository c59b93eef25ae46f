"""Which models may be used, and how each is pinned: local folders, and a hub on loopback."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from app.models.hub import ModelHubUnreachable
from app.models.names import FineTuned, fine_tuned_checkpoint, fine_tuned_model, parse_fine_tuned
from app.models.resolve import resolve_model
from core.errors import ModelNotAllowed, ModelNotFound, ServiceError
from core.ids import JobId
from core.settings import Settings
from core.spec import ModelSource
from tests.model_folders import write_model, write_safetensors
from tests.servers.hub import COMMIT, Hub, running_hub


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "local")


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "remote")


@pytest.fixture
def hub(hub_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub({"acme/base": hub_folder}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


@pytest.fixture
def settings(folder: Path) -> Settings:
    return Settings(_env_file=None, models={"podium/tiny": folder})


def refused(settings: Settings, reference: str) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        resolve_model(settings, reference)
    assert caught.value.param == "model"
    return caught.value


def test_a_local_model_is_pinned_by_its_files(settings: Settings) -> None:
    model = resolve_model(settings, "podium/tiny")
    assert (model.name, model.source) == ("podium/tiny", ModelSource.LOCAL)
    assert model.revision is not None
    assert len(model.revision) == 64
    assert resolve_model(settings, f"podium/tiny@{model.revision}") == model


def test_other_weights_are_another_revision(settings: Settings, folder: Path) -> None:
    before = resolve_model(settings, "podium/tiny").revision
    write_model(folder, weights=bytes(reversed(range(64))))
    assert resolve_model(settings, "podium/tiny").revision != before


def test_large_weights_are_told_apart_without_reading_them_whole(settings: Settings, folder: Path) -> None:
    weights = bytearray(8 * 1024 * 1024)
    write_model(folder, weights=bytes(weights))
    before = resolve_model(settings, "podium/tiny").revision
    weights[-1] = 1
    write_model(folder, weights=bytes(weights))
    assert resolve_model(settings, "podium/tiny").revision != before


def test_a_revision_that_the_folder_does_not_have_is_refused(settings: Settings) -> None:
    assert isinstance(refused(settings, "podium/tiny@main"), ModelNotFound)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_incomplete_folder_is_refused_by_the_name_of_what_it_lacks(
    settings: Settings, folder: Path, name: str
) -> None:
    (folder / name).unlink()
    error = refused(settings, "podium/tiny")
    assert isinstance(error, ModelNotAllowed)
    assert name.removeprefix("model") in error.message


def test_pickled_weights_are_refused(settings: Settings, folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickles" in refused(settings, "podium/tiny").message


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_custom_code_is_refused_locally(settings: Settings, folder: Path, name: str) -> None:
    (folder / name).write_text(json.dumps({"auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    assert "auto_map" in refused(settings, "podium/tiny").message


def test_a_missing_shard_is_named(settings: Settings, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model-00001-of-00002.safetensors", b"x")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "model-00002-of-00002.safetensors" in refused(settings, "podium/tiny").message


@pytest.mark.parametrize("revision", ["", "@main", f"@{COMMIT}"])
def test_a_hub_model_is_pinned_to_the_commit(settings: Settings, hub: Hub, revision: str) -> None:
    model = resolve_model(settings, f"acme/base{revision}")
    assert (model.name, model.source, model.revision) == ("acme/base", ModelSource.HUB, COMMIT)


def test_no_weights_are_downloaded_to_pin_a_model(settings: Settings, hub: Hub) -> None:
    resolve_model(settings, "acme/base")
    assert not [request for request in hub.requests if "safetensors" in request]


def test_a_model_that_the_hub_lacks_is_not_found(settings: Settings, hub: Hub) -> None:
    error = refused(settings, "acme/nothing")
    assert (error.code, error.status) == ("model_not_found", 404)


def test_the_nearest_local_name_is_offered(settings: Settings, hub: Hub) -> None:
    assert "podium/tiny" in (refused(settings, "podum/tiny").fix or "")
    assert "podium/tiny" in (refused(settings, "tiny").fix or "")


def test_a_revision_that_the_hub_lacks_is_named(settings: Settings, hub: Hub) -> None:
    error = refused(settings, "acme/base@v9")
    assert error.code == "model_not_found"
    assert "'v9'" in error.message


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_custom_code_is_refused_on_the_hub(settings: Settings, hub: Hub, hub_folder: Path, name: str) -> None:
    (hub_folder / name).write_text(json.dumps({"auto_map": {"AutoConfig": "evil.Config"}}))
    error = refused(settings, "acme/base")
    assert error.code == "model_not_allowed"
    assert "auto_map" in error.message


def test_pickles_on_the_hub_are_refused(settings: Settings, hub: Hub, hub_folder: Path) -> None:
    (hub_folder / "model.safetensors").rename(hub_folder / "pytorch_model.bin")
    assert "pickles" in refused(settings, "acme/base").message


def test_an_adapter_is_no_base_model(settings: Settings, hub: Hub, hub_folder: Path) -> None:
    (hub_folder / "config.json").rename(hub_folder / "adapter_config.json")
    assert "adapter" in refused(settings, "acme/base").message


def test_a_gated_model_says_what_the_operator_must_do(settings: Settings, hub: Hub) -> None:
    hub.gated.add("acme/base")
    error = refused(settings, "acme/base")
    assert error.code == "model_not_allowed"
    assert "HF_TOKEN" in (error.fix or "")


@pytest.mark.parametrize("status", [HTTPStatus.BAD_GATEWAY, HTTPStatus.TOO_MANY_REQUESTS])
def test_a_hub_in_trouble_is_worth_trying_again(settings: Settings, hub: Hub, status: HTTPStatus) -> None:
    hub.failing_with = status
    error = refused(settings, "acme/base")
    assert isinstance(error, ModelHubUnreachable)
    assert (error.status, error.retryable) == (503, True)


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"", b"\xff", b"[]", b"null", b"{}", b'{"id": "x"}'])
def test_what_answers_and_is_no_hub_is_a_hub_in_trouble(settings: Settings, hub: Hub, body: bytes) -> None:
    hub.answering = body
    assert isinstance(refused(settings, "acme/base"), ModelHubUnreachable)


def test_a_hub_that_is_away_is_worth_trying_again(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hub({}) as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.url)
    assert isinstance(refused(settings, "acme/base"), ModelHubUnreachable)


def test_local_models_need_no_hub(settings: Settings, hub: Hub) -> None:
    resolve_model(settings, "podium/tiny")
    assert hub.requests == []


def test_an_operator_can_forbid_the_hub(folder: Path, hub: Hub) -> None:
    closed = Settings(_env_file=None, models={"podium/tiny": folder}, allow_hub_models=False)
    assert refused(closed, "acme/base").code == "model_not_allowed"
    assert hub.requests == []


@pytest.mark.parametrize("name", ["../etc/passwd", "a/b/c", "a b", "", "http://x/y", "acme/base@../../x", "x" * 300])
def test_what_is_no_model_name_never_reaches_the_hub(settings: Settings, hub: Hub, name: str) -> None:
    assert refused(settings, name).code == "model_not_found"
    assert hub.requests == []


def test_names_of_trained_models_are_read_back() -> None:
    model, job_id = "acme/base:odd", JobId("ftjob-1")
    assert parse_fine_tuned(fine_tuned_model(model, None, job_id)) == FineTuned(job_id, None)
    assert parse_fine_tuned(fine_tuned_checkpoint(model, "bio", job_id, 40)) == FineTuned(job_id, 40)


@pytest.mark.parametrize("text", ["ft:", "ft:base", "ft:base:x:ftjob-1:ckpt-step-", "ft:base:x:ftjob-1:ckpt-step--1"])
def test_what_only_looks_like_a_trained_model_is_no_model(settings: Settings, hub: Hub, text: str) -> None:
    assert parse_fine_tuned(text) is None
    error = refused(settings, text)
    assert error.code == "model_not_found"
    assert error.fix is not None
    assert "fine_tuned_model" in error.fix
    assert hub.requests == []
