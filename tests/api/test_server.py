"""The app behind a real server: what only bytes on a wire, another process or a real bucket can show."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.main import create_app
from core.db.session import Sessions
from core.settings import Settings
from tests.api.conftest import OURS, authorised
from tests.api.forms import ROWS, upload
from tests.polling import wait_until
from tests.servers.api import running_api
from tests.servers.seaweedfs import S3Server

FORM = {"Content-Type": "multipart/form-data; boundary=x"}
HEAD = b'--x\r\nContent-Disposition: form-data; name="file"; filename="rows.jsonl"\r\n\r\n'
TAIL = b'\r\n--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n--x--\r\n'
MIB = 2**20


@pytest.fixture
def url(app: FastAPI) -> Iterator[str]:
    with running_api(app) as url:
        yield url


def form(row_bytes: int, rows: int) -> Iterator[bytes]:
    """An upload of that many long rows, sent in pieces and without a length."""
    yield HEAD
    for _ in range(rows):
        yield b'{"prompt": "' + b"a" * row_bytes + b'"}\n'
    yield TAIL


def test_chunked_upload_within_the_cap_is_taken(client: TestClient, url: str):
    headers = {**FORM, "Authorization": client.headers["Authorization"]}
    response = httpx.post(f"{url}/v1/files", content=form(1000, 100), headers=headers)
    assert response.status_code == 201
    assert response.json()["rows"] == 100


def test_chunked_upload_over_the_cap_is_413(client: TestClient, url: str, settings: Settings):
    headers = {**FORM, "Authorization": client.headers["Authorization"]}
    rows = settings.max_file_bytes * 8 // 1000
    response = httpx.post(f"{url}/v1/files", content=form(1000, rows), headers=headers)
    assert response.status_code == 413
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("payload_too_large", "file")
    assert error["message"] == "The file is larger than 256 KiB."
    assert f"at most {settings.max_file_bytes} bytes" in error["fix"]


def test_large_upload_with_a_wrong_key_reads_the_401_and_not_a_broken_pipe(url: str):
    headers = {**FORM, "Authorization": "Bearer pk_wrong"}
    response = httpx.post(f"{url}/v1/files", content=form(MIB, 8), headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_upload_that_breaks_off_leaves_nothing(
    client: TestClient, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    address = urlsplit(url)
    lines = ["POST /v1/files HTTP/1.1", "Host: x", "Content-Length: 100000", "Content-Type: " + FORM["Content-Type"]]
    head = "\r\n".join([*lines, f"Authorization: {client.headers['Authorization']}", "", ""]).encode()
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head + HEAD + ROWS)
        wait_until(lambda: any(tmp_path.iterdir()), what="the server keeps the first bytes")
    wait_until(lambda: not any(tmp_path.iterdir()), what="the server forgets the upload")
    assert client.get("/v1/files").json()["data"] == []


def test_upload_takes_memory_for_a_piece_and_not_for_the_file(settings: Settings, client: TestClient, tmp_path: Path):
    with _server_process(settings, tmp_path) as (process, url):
        headers = {**FORM, "Authorization": client.headers["Authorization"]}
        assert httpx.post(f"{url}/v1/files", content=form(MIB, 4), headers=headers, timeout=60).status_code == 201
        before = _peak_memory_bytes(process)
        response = httpx.post(f"{url}/v1/files", content=form(MIB, 48), headers=headers, timeout=60)
        assert response.status_code == 201
        assert response.json()["bytes"] > 48 * MIB
        assert _peak_memory_bytes(process) - before < 24 * MIB


@contextmanager
def _server_process(settings: Settings, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The API as an operator starts it, with room for large files."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(folder),
        "PODIUM_DATABASE_URL": settings.database_url,
        "PODIUM_BROKER_URL": settings.broker_url.get_secret_value(),
        "PODIUM_STORE_URL": settings.store_url,
        "PODIUM_MAX_FILE_BYTES": str(1024 * MIB),
    }
    command = [sys.executable, "-m", "uvicorn", "--factory", "app.main:create_app", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _answers(url), what="the API answers")
        yield process, url
    finally:
        process.terminate()
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def _peak_memory_bytes(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@pytest.fixture
def s3_client(
    settings: Settings, sessions: Sessions, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[TestClient]:
    """The same app over a bucket that clients can reach."""
    variables = s3_server.environment(prefix=tmp_path.name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    changes = {
        "store_url": variables["PODIUM_STORE_URL"],
        "s3_endpoint_url": s3_server.endpoint_url,
        "s3_public_endpoint_url": s3_server.endpoint_url,
    }
    with TestClient(create_app(settings.model_copy(update=changes))) as anonymous:
        yield authorised(anonymous, sessions, OURS)


def test_download_from_s3_redirects_to_a_presigned_url(s3_client: TestClient):
    path = f"/v1/files/{upload(s3_client, filename='bio ä.jsonl').json()['id']}/content"
    response = s3_client.get(path, follow_redirects=False)
    assert response.status_code == 307
    assert response.headers["cache-control"] == "no-store"
    presigned = response.headers["location"]
    fetched = httpx.get(presigned)
    assert fetched.content == ROWS
    assert "filename*=UTF-8''bio%20%C3%A4.jsonl" in fetched.headers["content-disposition"]
    assert httpx.get(presigned, headers={"Range": "bytes=1-4"}).content == ROWS[1:5]


def test_head_and_304_on_s3_are_answered_here(s3_client: TestClient):
    file = upload(s3_client).json()
    path = f"/v1/files/{file['id']}/content"
    assert s3_client.head(path).headers["content-length"] == str(len(ROWS))
    assert s3_client.get(path, headers={"If-None-Match": f'"{file["sha256"]}"'}).status_code == 304


def test_ready_on_s3(s3_client: TestClient):
    assert s3_client.get("/readyz").json()["checks"]["store"]["ok"]
