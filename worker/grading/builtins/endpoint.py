"""The `http` reward: a batch of rollouts posted to an endpoint of the user's. Runs outside the sandbox.

Requests are Standard Webhooks (standardwebhooks.com): `webhook-id`, `webhook-timestamp`, and with a secret
`webhook-signature`. A batch that is sent again keeps its id. Names are resolved once for each connection, and the
connection goes to the address that was checked: a name cannot be public for the check and private afterwards. No
redirect is followed, no proxy asked.
"""

import base64
import hashlib
import hmac
import http.client
import json
import math
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import structlog

from core.builtin_rewards.outside import Http, is_public, signing_key
from core.strict_json import strict_json
from worker.grading.grades import Grade, GradeOutcome, Rollout
from worker.grading.logged import bounded
from worker.grading.process import OutputTail
from worker.grading.returned import grade_of

ATTEMPTS = 2
MAX_ANSWER_BYTES = 16 * 1024 * 1024
_WORTH_TRYING_AGAIN = frozenset({408, 425, 429})

log = structlog.get_logger()


class EndpointDownError(Exception):
    """No answer, or one that says to come again: nothing is known about the rollouts."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class EndpointRefusedError(Exception):
    """An answer, or an address, that coming again will not change: for the user to mend."""


@dataclass(frozen=True, slots=True)
class _Target:
    host: str
    port: int
    path: str
    is_tls: bool

    @classmethod
    def of(cls, url: str) -> Self:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return cls(parts.hostname or "", parts.port or (443 if is_tls else 80), path, is_tls)


class HttpGrader:
    """A context manager like `worker.grading.client.Grader`, for one thread."""

    def __init__(self, parameters: Http, *, allow_private: bool = False) -> None:
        """`parameters` with their credentials (`Http.rejoined`)."""
        self._parameters = parameters
        self._allow_private = allow_private
        self._target = _Target.of(parameters.url)
        self._key = None if parameters.secret is None else signing_key(parameters.secret)
        self.output = OutputTail()
        """Always empty: an endpoint keeps its own log."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is kept open between batches."""

    def grade(self, rollouts: Sequence[Rollout], *, step: int = 0, until: float | None = None) -> list[Grade]:
        """One grade per rollout, in order; each with its share of the batch's time. Never raises for the endpoint.

        `until`: of the monotonic clock; the endpoint is not asked, or asked again, after it.
        """
        if not rollouts:
            return []
        started = time.monotonic()
        grades = self._grade(rollouts, step, math.inf if until is None else until)
        share = (time.monotonic() - started) / len(rollouts)
        return [replace(grade, latency_s=share) for grade in grades]

    def _grade(self, rollouts: Sequence[Rollout], step: int, until: float) -> list[Grade]:
        body = json.dumps({"step": step, "rollouts": [self._shown(rollout) for rollout in rollouts]}).encode()
        try:
            return _read_scores(self._post_twice(body, until), len(rollouts))
        except EndpointRefusedError as error:
            grade = Grade(GradeOutcome.USER_ERROR, message=str(error))
        except EndpointDownError as error:
            grade = Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message=str(error), timed_out=error.timed_out)
        log.warning("http_reward_failed", host=self._target.host, reason=grade.message, rollouts=len(rollouts))
        return [grade] * len(rollouts)

    def _shown(self, rollout: Rollout) -> dict[str, Any]:
        columns = {name: rollout.columns.get(name) for name in self._parameters.sends}
        return {"prompt": rollout.prompt, "completion": rollout.completion, "columns": columns}

    def _post_twice(self, body: bytes, until: float) -> bytes:
        message_id = f"msg_{uuid.uuid4().hex}"
        for _ in range(ATTEMPTS - 1):
            try:
                return self._post(body, message_id, until)
            except EndpointDownError as error:
                if time.monotonic() >= until:
                    raise
                log.info("http_reward_tried_again", host=self._target.host, reason=str(error))
        return self._post(body, message_id, until)

    def _post(self, body: bytes, message_id: str, until: float) -> bytes:
        within_s = min(self._parameters.timeout_s, until - time.monotonic())
        if within_s <= 0:
            raise EndpointDownError("not tried: the time of its batch was used up by others", timed_out=True)
        deadline = time.monotonic() + within_s
        try:
            with _CutOff(deadline) as cut_off, closing(self._connect(deadline, cut_off)) as connection:
                connection.request("POST", self._target.path, body, self._headers(body, message_id))
                response = connection.getresponse()
                answer = response.read(MAX_ANSWER_BYTES + 1)
                if time.monotonic() >= deadline:  # an answer without a length ends where it is cut off
                    raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= deadline:
                message = f"the endpoint gave no answer within {within_s:.3g} s"
                raise EndpointDownError(message, timed_out=True) from None
            raise EndpointDownError(f"the endpoint cannot be asked: {type(error).__name__}: {error}") from None
        _check_status(response.status)
        if len(answer) > MAX_ANSWER_BYTES:
            raise EndpointRefusedError(f"the endpoint's answer is longer than {MAX_ANSWER_BYTES} bytes")
        return answer

    def _headers(self, body: bytes, message_id: str) -> dict[str, str]:
        timestamp = str(int(time.time()))
        headers = {
            **self._parameters.headers,
            "Content-Type": "application/json",
            "User-Agent": "podium",
            "webhook-id": message_id,
            "webhook-timestamp": timestamp,
        }
        if self._key is not None:
            signed = f"{message_id}.{timestamp}.".encode() + body
            digest = hmac.new(self._key, signed, hashlib.sha256).digest()
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return headers

    def _connect(self, deadline: float, cut_off: "_CutOff") -> http.client.HTTPConnection:
        """Raises OSError, `EndpointRefusedError` for an address that may not be asked."""
        target = self._target
        connection = http.client.HTTPConnection(target.host, target.port)
        connection.auto_open = 0  # a connection of its own making would not be checked
        connection.default_port = 443 if target.is_tls else 80
        plain = connected = _dial(self._addresses(deadline), deadline)
        with _closed_on_failure(plain):  # without effect once it is wrapped: it has given its descriptor away
            if target.is_tls:
                tls = ssl.create_default_context()
                connected = tls.wrap_socket(plain, server_hostname=target.host, do_handshake_on_connect=False)
        connection.sock = connected
        with _closed_on_failure(connected):
            cut_off.watch(connected)
            if isinstance(connected, ssl.SSLSocket):
                connected.do_handshake()
        return connection

    def _addresses(self, deadline: float) -> list[tuple[str, int]]:
        """All of the host's, when all may be asked."""
        try:
            addresses = _resolve(self._target.host, self._target.port, deadline)
        except UnicodeError:
            raise EndpointRefusedError(f"`{self._target.host}` is not the name of a host") from None
        for host, _ in addresses:
            if not (self._allow_private or is_public(host)):
                raise EndpointRefusedError(
                    f"`{self._target.host}` has an address which is not a public address"
                    " (the operator may allow it: PODIUM_ALLOW_PRIVATE_REWARD_URLS=true)"
                )
        return addresses


class _CutOff:
    """Ends a connection at a deadline. A socket's own time limit counts anew for each byte: one could drip for ever."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self._timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._cut)
        self._timer.daemon = True
        self._connection: socket.socket | None = None

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def watch(self, connection: socket.socket) -> None:
        """Raises TimeoutError when it is over by now: the timer may have found nothing to cut."""
        self._connection = connection
        if time.monotonic() >= self._deadline:
            raise TimeoutError

    def _cut(self) -> None:
        if self._connection is not None:
            with suppress(OSError):  # closed by now
                socket.socket.shutdown(self._connection, socket.SHUT_RDWR)  # an SSLSocket's own is not for threads


@contextmanager
def _closed_on_failure(connection: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _resolve(host: str, port: int, deadline: float) -> list[tuple[str, int]]:
    """Raises OSError, TimeoutError at the deadline, and UnicodeError. getaddrinfo(3) has no time limit of its own: it
    may go on in its thread, for nobody.
    """
    answers: SimpleQueue[list[tuple[str, int]] | Exception] = SimpleQueue()

    def ask() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answers.put([(str(address[0]), int(address[1])) for *_, address in found])
        except Exception as error:  # noqa: BLE001 - raised again where it was asked for
            answers.put(error)

    threading.Thread(target=ask, name=f"resolve-{host}", daemon=True).start()
    try:
        answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
    except Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _dial(addresses: Sequence[tuple[str, int]], deadline: float) -> socket.socket:
    """The first that answers. Raises OSError."""
    failure = OSError("the host has no address")
    for address in addresses:
        try:
            return socket.create_connection(address, timeout=max(0.001, deadline - time.monotonic()))
        except OSError as error:
            failure = error
    raise failure


def _check_status(status: int) -> None:
    if status >= 500 or status in _WORTH_TRYING_AGAIN:
        raise EndpointDownError(f"the endpoint answered {status}")
    if not 200 <= status < 300:
        what = "a redirect, which is not followed" if 300 <= status < 400 else "not a success"
        raise EndpointRefusedError(f"the endpoint answered {status}: {what}")


def _read_scores(answer: bytes, count: int) -> list[Grade]:
    """Raises `EndpointRefusedError`; a score that is none is that rollout's error."""
    try:
        document = strict_json(answer.decode())
    except (ValueError, RecursionError):
        raise EndpointRefusedError(f"the endpoint's answer is not JSON: {answer[:80]!r}") from None
    scores = document.get("scores") if isinstance(document, dict) else None
    if not isinstance(scores, list):
        raise EndpointRefusedError('the endpoint\'s answer is not {"scores": [...]}')
    if len(scores) != count:
        raise EndpointRefusedError(f"the endpoint answered {len(scores)} scores for {count} rollouts")
    return [bounded(grade_of(score, 0.0, f" for index {index}")) for index, score in enumerate(scores)]
