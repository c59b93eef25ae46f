"""Downloads of what a job made: whole and in ranges, by digest, only when it is all there, only by its owner."""

import hashlib
import io
import tarfile
from uuid import uuid4

import httpx
import pytest
from fastapi.testclient import TestClient

from core.settings import Settings
from tests.api.jobs.runs import ADAPTER, Run
from tests.servers.seaweedfs import S3Server

WEIGHTS = "adapter/adapter_model.safetensors"
CHECKPOINT = {
    **ADAPTER,
    "tokenizer.json": b"{}",
    "optimizer.pt": b"pickle",
    "rng_state.pth": b"pickle",
    "training_args.bin": b"pickle",
    "trainer_state.json": b"{}",
}


def unpacked(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def in_folder(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"adapter/{name}": data for name, data in files.items()}


def test_artifacts_are_listed_with_their_digests(client: TestClient, run: Run) -> None:
    run.succeed()
    listed = {item["name"]: item for item in client.get(f"{run.path}/artifacts").json()["data"]}
    assert set(listed) == {"adapter/adapter_config.json", WEIGHTS, "results.json"}
    data = ADAPTER["adapter_model.safetensors"]
    assert listed[WEIGHTS]["size_bytes"] == len(data)
    assert listed[WEIGHTS]["sha256"] == hashlib.sha256(data).hexdigest()


def test_one_artifact_comes_byte_for_byte(client: TestClient, run: Run) -> None:
    run.succeed()
    response = client.get(f"{run.path}/artifacts/{WEIGHTS}")
    assert response.content == ADAPTER["adapter_model.safetensors"]
    assert response.headers["etag"] == f'"{hashlib.sha256(response.content).hexdigest()}"'
    assert f'filename="{run.job_id}-adapter_model.safetensors"' in response.headers["content-disposition"]
    unchanged = client.get(f"{run.path}/artifacts/{WEIGHTS}", headers={"If-None-Match": response.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


def test_results_are_the_document_that_the_worker_wrote(client: TestClient, run: Run) -> None:
    run.succeed(b'{"verdict": 1}')
    response = client.get(f"{run.path}/results")
    assert response.json() == {"verdict": 1}
    assert response.headers["content-type"] == "application/json"
    head = client.head(f"{run.path}/results")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == "14"


def test_the_adapter_is_one_archive_with_a_folder(client: TestClient, run: Run) -> None:
    run.succeed()
    response = client.get(f"{run.path}/adapter")
    assert response.headers["content-type"] == "application/x-tar"
    assert int(response.headers["content-length"]) == len(response.content)
    assert unpacked(response.content) == in_folder(ADAPTER)
    assert f'filename="{run.job_id}-adapter.tar"' in response.headers["content-disposition"]
    assert "repr-digest" not in response.headers


def test_an_archive_can_be_fetched_in_ranges(client: TestClient, run: Run) -> None:
    run.succeed()
    whole = client.get(f"{run.path}/adapter")
    size = len(whole.content)
    pieces = b""
    for start in range(0, size, 1000):
        headers = {"Range": f"bytes={start}-{start + 999}", "If-Range": whole.headers["etag"]}
        response = client.get(f"{run.path}/adapter", headers=headers)
        assert response.status_code == 206
        assert response.headers["content-range"] == f"bytes {start}-{min(start + 999, size - 1)}/{size}"
        pieces += response.content
    assert pieces == whole.content
    assert client.get(f"{run.path}/adapter", headers={"Range": "bytes=-7"}).content == whole.content[-7:]
    beyond = client.get(f"{run.path}/adapter", headers={"Range": f"bytes={size}-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")


def test_head_and_etag_work_for_archives(client: TestClient, run: Run) -> None:
    run.succeed()
    whole = client.get(f"{run.path}/adapter")
    head = client.head(f"{run.path}/adapter")
    assert (head.headers["content-length"], head.headers["etag"]) == (str(len(whole.content)), whole.headers["etag"])
    unchanged = client.get(f"{run.path}/adapter", headers={"If-None-Match": whole.headers["etag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")


@pytest.mark.parametrize("name", ["adapter", "results", "artifacts/results.json", f"artifacts/{WEIGHTS}"])
def test_what_a_running_job_will_make_is_not_ready(client: TestClient, run: Run, name: str) -> None:
    response = client.get(f"{run.path}/{name}")
    assert response.status_code == 409
    error = response.json()["error"]
    assert error["code"] == "artifact_not_ready"
    assert "running" in error["message"]
    assert response.headers["x-should-retry"] == "false"


def test_what_a_failed_job_did_not_make_is_not_ready_either(client: TestClient, run: Run) -> None:
    run.fail()
    error = client.get(f"{run.path}/adapter").json()["error"]
    assert error["code"] == "artifact_not_ready"
    assert "failed" in error["message"]
    assert "checkpoints" in error["fix"]


def test_half_an_adapter_is_not_handed_out(client: TestClient, run: Run) -> None:
    run.artifact("adapter/adapter_config.json", b"{}")
    assert client.get(f"{run.path}/adapter").status_code == 409


def test_a_name_that_no_job_makes_is_not_found(client: TestClient, run: Run) -> None:
    run.succeed()
    for name in ("nothing.txt", "adapter/nothing", "../secret", "%2e%2e/secret", ""):
        response = client.get(f"{run.path}/artifacts/{name}")
        assert response.status_code == 404


def test_the_adapter_of_a_checkpoint_leaves_the_optimizer_behind(client: TestClient, run: Run) -> None:
    run.checkpoint(1, CHECKPOINT)
    response = client.get(f"{run.path}/checkpoints/1/adapter")
    assert unpacked(response.content) == in_folder({**ADAPTER, "tokenizer.json": b"{}"})
    assert client.head(f"{run.path}/checkpoints/1/adapter").headers["content-length"] == str(len(response.content))


def test_of_a_step_that_two_attempts_saved_the_later_counts(client: TestClient, run: Run) -> None:
    run.checkpoint(1, {"adapter_model.safetensors": b"first"})
    first = client.head(f"{run.path}/checkpoints/1/adapter").headers["etag"]
    run.again().checkpoint(1, {"adapter_model.safetensors": b"second"})
    response = client.get(f"{run.path}/checkpoints/1/adapter")
    assert unpacked(response.content) == {"adapter/adapter_model.safetensors": b"second"}
    assert response.headers["etag"] != first


@pytest.mark.parametrize(("step", "status"), [("2", 404), ("x", 422), ("-1", 422), (str(2**40), 422)])
def test_a_step_without_a_checkpoint_is_not_found(client: TestClient, run: Run, step: str, status: int) -> None:
    run.checkpoint(1, ADAPTER)
    assert client.get(f"{run.path}/checkpoints/{step}/adapter").status_code == status


@pytest.mark.parametrize("name", ["artifacts", f"artifacts/{WEIGHTS}", "results", "adapter", "checkpoints/1/adapter"])
def test_downloads_are_the_owners_alone(client: TestClient, other_tenant: TestClient, run: Run, name: str) -> None:
    run.checkpoint(1, ADAPTER)
    run.succeed()
    assert client.get(f"{run.path}/{name}").status_code == 200
    response = other_tenant.get(f"{run.path}/{name}")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "job_not_found"


def test_a_job_of_a_whole_model_hands_out_the_model(client: TestClient, run: Run) -> None:
    run.checkpoint(1, {"model.safetensors": b"w", "config.json": b"{}", "optimizer.pt": b"p"})
    files = unpacked(client.get(f"{run.path}/checkpoints/1/adapter").content)
    assert set(files) == {"adapter/model.safetensors", "adapter/config.json"}


class TestOnS3:
    """One artifact is a redirect to the store; an archive is put together from ranges of its objects."""

    @pytest.fixture
    def settings(self, settings: Settings, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Settings:
        environment = s3_server.environment(prefix=f"artifacts-{uuid4().hex}")
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return settings.model_copy(
            update={
                "store_url": environment["PODIUM_STORE_URL"],
                "s3_endpoint_url": environment["PODIUM_S3_ENDPOINT_URL"],
                "s3_public_endpoint_url": environment["PODIUM_S3_PUBLIC_ENDPOINT_URL"],
            }
        )

    def test_an_artifact_is_fetched_from_the_store_without_our_key(self, client: TestClient, run: Run) -> None:
        run.succeed()
        response = client.get(f"{run.path}/artifacts/{WEIGHTS}", follow_redirects=False)
        assert response.status_code == 307
        fetched = httpx.get(response.headers["location"])
        assert fetched.content == ADAPTER["adapter_model.safetensors"]

    def test_the_adapter_is_streamed_as_one_archive(self, client: TestClient, run: Run) -> None:
        run.succeed()
        whole = client.get(f"{run.path}/adapter").content
        assert unpacked(whole) == in_folder(ADAPTER)
        part = client.get(f"{run.path}/adapter", headers={"Range": "bytes=600-2999"})
        assert (part.status_code, part.content) == (206, whole[600:3000])
