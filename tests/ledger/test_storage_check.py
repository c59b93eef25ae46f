"""What `check()` proves about a store, and what it says about one that does not work."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from core.settings import Settings
from core.storage.connect import open_store
from core.storage.folder import FolderStore
from core.storage.store import ObjectStore, StoreError, StoreMisconfigured, StoreUnavailable


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


class CarelessS3(BaseHTTPRequestHandler):
    """A server that keeps objects but ignores conditions or digests, as some do."""

    protocol_version = "HTTP/1.1"
    keeps_conditions = False
    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.keeps_conditions and self.headers["If-None-Match"] and self.path in self.objects:
            self.answer(412)
            return
        self.objects[self.path] = body
        self.answer(200)

    def do_GET(self) -> None:
        self.answer(200, self.objects[self.path])

    def do_DELETE(self) -> None:
        self.answer(204)

    def answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture(params=[False, True], ids=["ignores conditions", "ignores digests"])
def careless_s3(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    handler = type("Handler", (CarelessS3,), {"keeps_conditions": request.param, "objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", "SHA-256" if request.param else "If-None-Match"
        server.shutdown()


def test_check_refuses_a_server_that_breaks_the_contract(careless_s3: tuple[str, str], s3_settings: Settings) -> None:
    endpoint_url, complaint = careless_s3

    error = failure_of_check(open_store(s3_settings.model_copy(update={"s3_endpoint_url": endpoint_url})))

    assert isinstance(error, StoreMisconfigured)
    assert complaint in error.message


@pytest.mark.parametrize("url", ["", "/var/lib", "file://", "file://host/folder", "file:///", "s3://", "gs://bucket"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(StoreMisconfigured) as caught:
        open_store(Settings(_env_file=None, store_url=url))

    assert "PODIUM_STORE_URL" in (caught.value.fix or "")
