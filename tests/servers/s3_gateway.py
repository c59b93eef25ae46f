"""A gateway before the real S3 server, as some stand before real ones: it signs every request anew with its own key.

So it takes whatever secret the caller has; and what it leaves out of a request, the server never sees.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.servers.seaweedfs import S3Server

_OURS = {"host", "authorization", "content-length", "x-amz-date", "x-amz-content-sha256", "connection", "expect"}
"""Headers that the gateway makes itself."""


@dataclass
class Gateway:
    server: S3Server
    drops: frozenset[str] = frozenset()
    """Headers that it does not pass on, in small letters."""
    full: tuple[int, str] | None = None
    """Status and code with which it answers every PUT."""
    url: str = field(default="", init=False)


@contextmanager
def running_gateway(gateway: Gateway) -> Iterator[Gateway]:
    handler = type("Handler", (_Handler,), {"gateway": gateway})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listener:
        thread = Thread(target=listener.serve_forever)
        thread.start()
        gateway.url = f"http://127.0.0.1:{listener.server_port}"
        try:
            yield gateway
        finally:
            listener.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gateway: Gateway

    def do_PUT(self) -> None:
        body = self._body()
        if self.gateway.full is None:
            self._pass_on(body)
        else:
            status, code = self.gateway.full
            self._answer(status, {}, f"<Error><Code>{code}</Code><Message>Full.</Message></Error>".encode())

    def do_GET(self) -> None:
        self._pass_on(self._body())

    def do_DELETE(self) -> None:
        self._pass_on(self._body())

    def log_message(self, *arguments: object) -> None: ...

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _pass_on(self, body: bytes) -> None:
        left_out = _OURS | self.gateway.drops
        headers = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        request = AWSRequest(self.command, self.gateway.server.endpoint_url + self.path, headers=headers, data=body)
        credentials = Credentials(self.gateway.server.access_key, self.gateway.server.secret_key)
        S3SigV4Auth(credentials, "s3", "us-east-1").add_auth(request)
        answer = httpx.request(self.command, request.url, headers=dict(request.headers), content=body)
        self._answer(answer.status_code, dict(answer.headers), answer.content)

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name not in {"content-length", "transfer-encoding", "content-encoding", "connection"}:
                self.send_header(name, value)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
