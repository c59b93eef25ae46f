"""A loopback port in front of a Unix socket, which can fall silent: the kernel still answers, nobody else does."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class TcpProxy:
    def __init__(self, target: Path) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._thread(self._accept)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def fall_silent(self) -> None:
        """Take everything, pass nothing on."""
        self._open.clear()

    def speak(self) -> None:
        """Pass on what was held back, and all that comes."""
        self._open.set()

    def close(self) -> None:
        self._closed = True
        self._open.set()
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError):
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                self._sockets += [client, server]
                server.connect(str(self._target))
                self._thread(self._pump, client, server)
                self._thread(self._pump, server, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self._open.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _thread(self, target, *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()


@contextmanager
def running_proxy(target: Path) -> Iterator[TcpProxy]:
    proxy = TcpProxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
