"""A server that says nothing is noticed within 1.3 s: then a client can be told to come back, instead of waiting too.

A server that is gone refuses at once. One that is silent (a frozen host, a network that swallows packets) does not:
libpq waits at least 2 s for a connection, and for an answer without end; TCP's own timeouts see lost packets only, not
a host whose kernel still answers. So a pooled connection is asked before it is lent, and a server before it is
connected to, both with a deadline of ours.
"""

import selectors
import socket
import struct
import time
from contextlib import ExitStack
from typing import Any

import psycopg
from sqlalchemy import Engine, event
from sqlalchemy.exc import InvalidatePoolError

PING_S = 0.4
"""An idle connection answers in well under a millisecond."""
GREETING_S = 0.9
"""A server answers the first bytes of a connection before it asks who it is."""
BELIEVED_S = 0.5
"""A server that was silent so lately is not asked again: of a hundred requests, not each has to wait."""

_SSL_REQUEST = struct.pack("!ii", 8, 80_877_103)
"""PostgreSQL's protocol, 54.2.10: answered by one byte, with or without TLS, before anything else."""


class Silence:
    """Of one engine. Thread-safe: the worst race asks once more."""

    def __init__(self) -> None:
        self._noticed_at = -BELIEVED_S

    def on_checkout(self, connection: psycopg.Connection, _record: Any, _fairy: Any) -> None:
        """SQLAlchemy's `checkout`: the error makes the pool forget its connections and open a new one."""
        if not _answers(connection, within_s=PING_S):
            raise InvalidatePoolError("a pooled connection does not answer")

    def on_connect(self, _dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        """SQLAlchemy's `do_connect`. Raises for a silent server; every other trouble is libpq's to name."""
        host = parameters.get("host")
        if host is None or "," in host:
            return
        if time.monotonic() - self._noticed_at < BELIEVED_S:
            raise psycopg.OperationalError("the server did not answer a moment ago")
        try:
            _greet(host, int(parameters.get("port", 5432)), within_s=GREETING_S)
        except TimeoutError:
            self._noticed_at = time.monotonic()
            raise psycopg.OperationalError(f"the server said nothing for {GREETING_S:g} s") from None
        except OSError:
            return


def give_up_on_silence(engine: Engine) -> None:
    """For a process that owes somebody an answer. Takes the place of `pool_pre_ping`."""
    silence = Silence()
    event.listen(engine, "checkout", silence.on_checkout)
    event.listen(engine, "do_connect", silence.on_connect)


def _answers(connection: psycopg.Connection, *, within_s: float) -> bool:
    """Whether an empty query comes back in time. Opens no transaction."""
    deadline, server = time.monotonic() + within_s, connection.pgconn
    with selectors.DefaultSelector() as selector:
        try:
            selector.register(server.socket, selectors.EVENT_READ)
            server.send_query(b"")
            while True:
                while server.is_busy():
                    if not selector.select(max(0.0, deadline - time.monotonic())):
                        return False
                    server.consume_input()
                if server.get_result() is None:
                    return True
        except psycopg.OperationalError:
            return False


def _greet(host: str, port: int, *, within_s: float) -> None:
    """Raises TimeoutError when nobody answers in time, OSError when somebody refuses."""
    with _reach(host, port, within_s=within_s) as server:
        server.sendall(_SSL_REQUEST)
        server.recv(1)


def _reach(host: str, port: int, *, within_s: float) -> socket.socket:
    if not host.startswith("/"):
        return socket.create_connection((host, port), timeout=within_s)
    with ExitStack() as unless_connected:
        server = unless_connected.enter_context(socket.socket(socket.AF_UNIX))
        server.settimeout(within_s)
        server.connect(f"{host}/.s.PGSQL.{port}")
        unless_connected.pop_all()
    return server
