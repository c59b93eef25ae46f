"""A loopback port in front of a server. It can fall silent (the kernel still answers, nobody else does), or hang up."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Target = Path | int
"""A Unix socket, or a port on loopback."""


class TcpProxy:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self.connections = 0
        """How many were ever taken."""
        _thread(self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def fall_silent(self) -> None:
        """Take everything, pass nothing on."""
        self._open.clear()

    def speak(self) -> None:
        """Pass on what was held back, and all that comes."""
        self._open.set()

    def cut(self) -> None:
        """End every connection that stands, in the middle of whatever it carries; new ones are taken."""
        with self._lock:
            for one in self._sockets:
                _hang_up(one)

    def close(self) -> None:
        self._closed = True
        self._open.set()
        _hang_up(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):
                client, _ = self._listener.accept()
                self.connections += 1
                _thread(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        """Both directions of one connection, until both have ended."""
        try:
            server = _connect(self._target)
        except OSError:
            client.close()
            return
        pair = {client, server}
        with self._lock:
            self._sockets |= pair
        back = _thread(self._pump, server, client)
        self._pump(client, server)
        back.join()
        with self._lock:
            self._sockets -= pair
        for one in pair:
            one.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self._open.wait()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:  # one side is gone: the other is told, which also ends the pump of the other direction
            _hang_up(source)
            _hang_up(sink)


@contextmanager
def running_proxy(target: Target) -> Iterator[TcpProxy]:
    proxy = TcpProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()


def _connect(target: Target) -> socket.socket:
    if isinstance(target, int):
        return socket.create_connection(("127.0.0.1", target), timeout=None)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(str(target))
    except OSError:
        server.close()
        raise
    return server


def _hang_up(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


def _thread(target: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread
