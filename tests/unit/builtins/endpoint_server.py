"""A real HTTP endpoint on loopback, which answers what a test tells it to."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Endpoint:
    port: int = 0
    status: int = 200
    answer: Callable[[dict[str, Any]], bytes] = lambda request: json.dumps({"scores": [1] * count(request)}).encode()
    headers: dict[str, str] = field(default_factory=dict)
    drips: bool = False
    """Send the answer byte by byte, and never end."""
    failures: int = 0
    """Answer 503 so many times first."""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


def count(request: dict[str, Any]) -> int:
    return len(request["rollouts"])


@contextmanager
def endpoint(tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    here = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            here.requests.append((dict(self.headers), body))
            here.failures -= 1
            self.send_response(503 if here.failures >= 0 else here.status)
            for name, value in here.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.flush()
            while here.drips and not here.over.wait(0.02):
                self.wfile.write(b" ")
            self.wfile.write(here.answer(json.loads(body)))

        def log_message(self, *args: object) -> None:
            """Silence."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that hang up are what is tested."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    here.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield here
    finally:
        here.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
