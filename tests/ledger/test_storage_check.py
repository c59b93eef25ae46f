"""What `check()` proves about a store, and what it says about one that does not work."""

import subprocess
import sys
from pathlib import Path

import pytest

from core.settings import Settings
from core.storage.connect import open_store
from core.storage.folder import FolderStore
from core.storage.store import ObjectStore, Proof, StoreError, StoreMisconfigured, StoreUnavailable
from tests.servers.s3_gateway import Gateway, running_gateway
from tests.servers.seaweedfs import S3Server


def failure_of_check(store: ObjectStore) -> StoreError:
    with pytest.raises(StoreError) as caught:
        store.check()
    return caught.value


@pytest.mark.parametrize(
    ("variable", "value", "code"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "nobody", "InvalidAccessKeyId"),
        ("PODIUM_STORE_URL", "s3://no-such-bucket", "NoSuchBucket"),
    ],
)
def test_check_says_what_is_wrong_with_the_settings_of_s3(
    s3_settings: Settings, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, code: str
) -> None:
    monkeypatch.setenv(variable, value)

    error = failure_of_check(open_store(Settings(_env_file=None)))

    assert isinstance(error, StoreMisconfigured)
    assert code in error.message
    assert error.fix is not None


def test_check_says_that_credentials_are_missing(
    s3_settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    error = failure_of_check(open_store(s3_settings))

    assert isinstance(error, StoreMisconfigured)
    assert "AWS_ACCESS_KEY_ID" in (error.fix or "")


def test_check_says_that_the_server_is_away(s3_settings: Settings) -> None:
    error = failure_of_check(open_store(s3_settings.model_copy(update={"s3_endpoint_url": "http://127.0.0.1:9"})))

    assert isinstance(error, StoreUnavailable)
    assert error.retryable
    assert "127.0.0.1" not in error.message


def test_check_says_that_the_folder_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    error = failure_of_check(FolderStore(tmp_path / "file" / "store"))

    assert isinstance(error, StoreMisconfigured)
    assert "PODIUM_STORE_URL" in (error.fix or "")


@pytest.mark.parametrize(
    ("drops", "sin"),
    [
        ({"if-none-match"}, "If-None-Match"),
        ({"x-amz-checksum-sha256"}, "SHA-256"),
        (set(), "wrong secret"),
    ],
    ids=["ignores conditional writes", "ignores checksums", "takes any secret"],
)
def test_check_refuses_a_server_that_breaks_the_contract_and_names_how(
    s3_server: S3Server, s3_settings: Settings, drops: set[str], sin: str
) -> None:
    with running_gateway(Gateway(s3_server, drops=frozenset(drops))) as gateway:
        error = failure_of_check(open_store(s3_settings.model_copy(update={"s3_endpoint_url": gateway.url})))

    assert isinstance(error, StoreMisconfigured)
    assert sin in error.message
    assert error.fix is not None
    assert list(open_store(s3_settings).list("")) == [], "the probe is gone"


def test_check_says_what_it_proved_and_leaves_nothing(store: ObjectStore) -> None:
    test = store.check()

    assert set(Proof) - set(test.proved) == ({Proof.SIGNATURE} if isinstance(store, FolderStore) else set())
    assert test.seconds > 0
    assert list(store.list("")) == []


def test_a_folder_store_does_not_wait_for_boto3(tmp_path: Path) -> None:
    program = (
        "import sys; from core.settings import Settings; from core.storage.connect import open_store;"
        f"open_store(Settings(_env_file=None, store_url='file://{tmp_path}')).check(); sys.exit('boto3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("url", ["", "/var/lib", "file://", "file://host/folder", "file:///", "s3://", "gs://bucket"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreMisconfigured) as caught:
        open_store(Settings(_env_file=None, store_url=url))

    assert "PODIUM_STORE_URL" in (caught.value.fix or "")
