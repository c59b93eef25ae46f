"""A small metadata server on loopback, as the clouds run one for each machine: AWS's (IMDSv2), Google's and Azure's.

It insists on what the real ones insist on: a session token, `Metadata-Flavor: Google`, `Metadata: true`.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN_PATH = "/latest/api/token"


@dataclass
class Metadata:
    url: str
    answers: dict[str, str] = field(default_factory=dict)
    """Bodies by path, with its query. Change it at any time; what is not in it is not found."""
    token: str | None = "token-1"
    """AWS: the session's token; another one ends the session, None hands out none."""
    failing_with: HTTPStatus | None = None
    redirecting_to: str | None = None
    raw: bytes | None = None
    """Answer with these bytes, which need not be HTTP."""
    silent: bool = False
    """Take every request and answer none until the end."""
    requests: list[str] = field(default_factory=list)
    """`METHOD /path`, in order of arrival."""
    ended: threading.Event = field(default_factory=threading.Event)


@contextmanager
def running_metadata_server(answers: Mapping[str, str] | None = None) -> Iterator[Metadata]:
    metadata = Metadata("", dict(answers or {}))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, metadata))
    metadata.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="metadata")
    thread.start()
    try:
        yield metadata
    finally:
        metadata.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, metadata: Metadata, *args: Any) -> None:
        self.metadata = metadata
        super().__init__(*args)

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Keep quiet."""

    def _answer(self) -> None:
        server = self.metadata
        server.requests.append(f"{self.command} {self.path}")
        if server.silent:
            server.ended.wait(60)
        elif server.raw is not None:
            self.wfile.write(server.raw)
        elif server.redirecting_to is not None:
            self._send(HTTPStatus.FOUND, "", {"Location": server.redirecting_to})
        elif refusal := server.failing_with or self._refusal():
            self._send(refusal, "")
        elif self.path == TOKEN_PATH:
            self._send(HTTPStatus.OK, server.token or "")
        else:
            self._send(HTTPStatus.OK, server.answers[self.path])

    def _refusal(self) -> HTTPStatus | None:
        """As each cloud says no."""
        match self.path.split("/")[1:3]:
            case ["latest", "api"]:
                return self._token_refusal()
            case ["latest", _]:
                if self.metadata.token is None or self.headers["X-aws-ec2-metadata-token"] != self.metadata.token:
                    return HTTPStatus.UNAUTHORIZED
            case ["computeMetadata", _]:
                if self.headers["Metadata-Flavor"] != "Google":
                    return HTTPStatus.FORBIDDEN
            case ["metadata", _]:
                if self.headers["Metadata"] != "true":
                    return HTTPStatus.BAD_REQUEST
        return None if self.path in self.metadata.answers else HTTPStatus.NOT_FOUND

    def _token_refusal(self) -> HTTPStatus | None:
        if self.metadata.token is None:
            return HTTPStatus.NOT_FOUND
        ttl = self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        is_asked_well = self.command == "PUT" and ttl is not None and 1 <= int(ttl) <= 21_600
        return None if is_asked_well else HTTPStatus.BAD_REQUEST

    def _send(self, status: HTTPStatus, body: str, headers: Mapping[str, str] | None = None) -> None:
        data = body.encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
