"""One grading process: started, asked, killed. In a sandbox, unless the operator wants none."""

import os
import secrets
import selectors
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Never

import structlog

from worker.grading import protocol
from worker.grading.limits import Limits
from worker.grading.plain import PlainChild
from worker.grading.rules import GradingRules
from worker.grading.sandbox import SandboxedChild, find_sandbox

log = structlog.get_logger()

LOG_BYTES = 64 * 1024
"""How much of the end of standard output and error is kept."""
_CHUNK_BYTES = 256 * 1024


class ProcessBrokenError(Exception):
    """The process crashed, hung or said what it must not. It has been killed."""


class ProcessUnaskableError(ProcessBrokenError):
    """For want of something of ours: nothing is known about what it would have answered."""


class OutputTail:
    """The end of a stream of bytes."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        self._kept += data
        if (excess := len(self._kept) - LOG_BYTES) > 0:
            del self._kept[:excess]
            self.dropped_bytes += excess

    def text(self) -> str:
        return self._kept.decode("utf-8", "backslashreplace").replace("\0", "\\0")

    def take(self) -> tuple[str, int]:
        """The text, and how many bytes before it are lost; both are forgotten here."""
        taken = self.text(), self.dropped_bytes
        self._kept.clear()
        self.dropped_bytes = 0
        return taken


class GradingProcess:
    """Started on construction. Not for several threads: it is killed when the thread that started it ends."""

    def __init__(self, working_folder: Path, output: OutputTail, *, sandboxed: bool | None = None) -> None:
        """`working_folder` is where a child without a sandbox runs; `sandboxed=None` is as the operator wants it.

        Raises `SandboxUnavailable` where there can be none, `ProcessBrokenError` when the start fails otherwise.
        """
        self._output = output
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                self._socket, their_socket = socket.socketpair()
                ours.callback(self._socket.close)
                theirs.callback(their_socket.close)
                self._output_fd, output_end = os.pipe()
                ours.callback(self._close_output)
                theirs.callback(os.close, output_end)
                os.set_blocking(self._output_fd, False)
                self._socket.setblocking(False)
                self._selector = ours.enter_context(selectors.DefaultSelector())
                self._selector.register(self._output_fd, selectors.EVENT_READ)
                self._selector.register(self._socket, selectors.EVENT_READ)
                self._child = _start(their_socket.fileno(), output_end, working_folder, sandboxed)
            except OSError as error:
                raise ProcessBrokenError(f"the grading process cannot be started: {error}") from error
            ours.pop_all()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def child(self) -> PlainChild | SandboxedChild:
        """What holds it."""
        return self._child

    def ask(self, request: Mapping[str, Any], deadline_s: float, *, answers: int = 1) -> dict[str, Any]:
        """Send one request and wait for its answer, draining the output meanwhile; raises `ProcessBrokenError`.

        `answers`: how many grades are asked for; the answer may be that much longer. A request that cannot be sent
        raises `protocol.ProtocolError`, and the process lives on.
        """
        request_id = secrets.token_hex(16)  # not to be guessed: nothing can be answered before it was asked
        frame = protocol.encode({"id": request_id, **request})
        try:
            answer = protocol.decode(self._exchange(frame, deadline_s, protocol.answer_cap(answers)))
        except protocol.ProtocolError as error:
            self.fail(f"sent what is not an answer: {error}")
        except ConnectionError:
            self._child.wait_briefly()
            self.fail(None)
        except OSError as error:  # the kernel has no memory left for it
            self.close()
            raise ProcessUnaskableError(f"the grading process cannot be asked: {error}") from error
        if answer.pop("id", None) != request_id:
            self.fail("answered another request")
        return answer

    def fail(self, reason: str | None) -> Never:
        """Kill the process and raise; without a reason, say how it ended by itself."""
        status = self.close()
        raise ProcessBrokenError(f"the grading process {self._child.reason or reason or _describe_end(status)}")

    def close(self) -> int:
        """Kill the process and all that it started, and reap it; the exit status, also when called again."""
        status = self._child.end()
        self._selector.close()
        self._close_output()
        self._socket.close()
        return status

    def _close_output(self) -> None:
        if self._output_fd >= 0:
            self._drain()
            os.close(self._output_fd)
            self._output_fd = -1

    def _exchange(self, frame: bytes, deadline_s: float, cap_bytes: int) -> bytes:
        """Send `frame` and receive the body of one; raises ConnectionError when the process ends."""
        deadline = time.monotonic() + deadline_s
        incoming = bytearray()
        outgoing = memoryview(frame)[self._send(frame) :]
        if outgoing:  # more than the socket holds
            self._selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        while (remaining := deadline - time.monotonic()) > 0:
            for key, events in self._selector.select(remaining):
                if key.fileobj == self._output_fd:
                    if not self._drain():
                        self._selector.unregister(self._output_fd)
                    continue
                if events & selectors.EVENT_WRITE:
                    outgoing = outgoing[self._send(outgoing[:_CHUNK_BYTES]) :]
                    if not outgoing:
                        self._selector.modify(self._socket, selectors.EVENT_READ)
                if events & selectors.EVENT_READ and (body := self._receive(incoming, cap_bytes)) is not None:
                    return body
        return self.fail(f"gave no answer within {deadline_s:g} s")

    def _send(self, data: bytes | memoryview) -> int:
        """How many bytes the socket has taken."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _receive(self, incoming: bytearray, cap_bytes: int) -> bytes | None:
        """Add what has arrived to `incoming`; the body, once the frame is whole."""
        data = self._socket.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError
        incoming += data
        header = protocol.HEADER.size
        if len(incoming) < header:
            return None
        size = protocol.body_size(bytes(incoming[:header]), cap_bytes)
        if len(incoming) > header + size:
            raise protocol.ProtocolError("more than one frame")
        return bytes(incoming[header:]) if len(incoming) == header + size else None

    def _drain(self) -> bool:
        """Read the output that is there, at most one pipe full; False at its end."""
        try:
            data = os.read(self._output_fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        self._output.add(data)
        return bool(data)


def _start(connection: int, output: int, working_folder: Path, sandboxed: bool | None) -> PlainChild | SandboxedChild:
    rules = GradingRules.of_environment()
    if sandboxed is None and rules.run_without_sandbox:
        log.warning("reward_code_runs_without_sandbox")
        sandboxed = False
    if sandboxed is False:
        return PlainChild(connection, output, working_folder)
    return SandboxedChild(find_sandbox().bwrap, connection, output, Limits(memory_bytes=rules.memory_bytes))


def _describe_end(status: int) -> str:
    if status >= 0:
        return f"exited with code {status}"
    return f"was killed by {_name_of_signal(-status)}"


def _name_of_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have none, nor has what an exit code above 128 is taken for
        return f"signal {number}"
