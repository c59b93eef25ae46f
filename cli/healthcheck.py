"""One look at one part, for container health checks: exit code 0 if it answers as it should.

    python -m cli.healthcheck http://127.0.0.1:8000/readyz
    python -m cli.healthcheck PODIUM_BROKER_URL

Standard library only, because it starts every few seconds. A target without `://` is the name of an environment
variable that holds the URL, so that no password shows in a process list.
"""

import os
import socket
import ssl
import sys
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, unquote, urlsplit

TIMEOUT_S = 4.0
SHOWN_BYTES = 1000
USAGE = "usage: python -m cli.healthcheck URL|VARIABLE"


def main(arguments: Sequence[str]) -> int:
    """0: healthy. 1: not, and standard error says why. 2: not a question that can be answered."""
    if len(arguments) != 1:
        return _say(USAGE, code=2)
    url = urlsplit(arguments[0] if "://" in arguments[0] else os.environ.get(arguments[0], ""))
    checks = {"http": _check_http, "https": _check_http, "redis": _check_redis, "rediss": _check_redis}
    if url.scheme not in checks or not url.hostname:
        return _say(f"{arguments[0]} is neither an http(s) or redis(s) URL nor a variable that holds one", code=2)
    try:
        trouble = checks[url.scheme](url)
    except (OSError, HTTPException) as error:
        trouble = f"{type(error).__name__}: {error}"
    return _say(f"{url.hostname}: {trouble}", code=1) if trouble else 0


def _check_http(url: SplitResult) -> str | None:
    """Anything but 200 is trouble; the answer's body says what. Proxies are for the world, not for ourselves."""
    connect = HTTPSConnection if url.scheme == "https" else HTTPConnection
    connection = connect(url.hostname or "", url.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", (url.path or "/") + (f"?{url.query}" if url.query else ""))
        answer = connection.getresponse()
        shown = answer.read(SHOWN_BYTES).decode(errors="replace")
        return None if answer.status == 200 else f"answered {answer.status}: {shown}"
    finally:
        connection.close()


def _check_redis(url: SplitResult) -> str | None:
    """AUTH if the URL has a password, then PING, in RESP (the protocol of Redis and Valkey)."""
    commands, wanted = [["PING"]], b"+PONG\r\n"
    if url.password is not None:
        account = [unquote(url.username)] if url.username else []
        commands, wanted = [["AUTH", *account, unquote(url.password)], *commands], b"+OK\r\n" + wanted
    answer = b""
    with _connect(url) as connection:
        connection.sendall(b"".join(map(_resp, commands)))
        while len(answer) < len(wanted) and wanted.startswith(answer) and (piece := connection.recv(SHOWN_BYTES)):
            answer += piece
    return None if answer == wanted else f"answered {answer.decode(errors='replace').strip()!r}"


def _connect(url: SplitResult) -> socket.socket:
    plain = socket.create_connection((url.hostname or "", url.port or 6379), timeout=TIMEOUT_S)
    if url.scheme == "redis":
        return plain
    return ssl.create_default_context().wrap_socket(plain, server_hostname=url.hostname)


def _resp(words: Sequence[str]) -> bytes:
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


def _say(text: str, *, code: int) -> int:
    sys.stderr.write(f"{text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
