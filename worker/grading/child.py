"""The grading process: loads one reward, answers `load` and `grade` frames until its client closes the connection.

It is started by `worker.grading.process` with an empty environment, on an interpreter that has read no site
configuration. Reward code runs on the main thread (libraries that use `signal.alarm` work), and shares the process
with this loop: it can break its own grading, never the client's.
"""

import faulthandler
import io
import linecache
import os
import signal
import socket
import sys
import types
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, cast

from core.reward_source import RewardEntry, RewardForm, decode_source
from worker.grading import protocol, signatures
from worker.grading.grades import Grade, Rollout
from worker.parent import die_with


def main() -> None:
    """`argv[1:]` is the descriptor of the connected socket and the process id of the client."""
    descriptor, client_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with(client_pid, signal.SIGKILL)
    os.environ.clear()  # PEP 538 may have put LC_CTYPE there
    sys.argv[:] = [signatures.SOURCE_NAME]
    faulthandler.enable()
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        serve(cast("BinaryIO", stream))


def serve(stream: BinaryIO) -> None:
    reward: tuple[Callable[..., Any], RewardEntry] | None = None
    while (request := protocol.read_frame(stream)) is not None:
        answer: dict[str, Any]
        match request:
            case {"kind": "load", "path": str(path), "entry": dict(fields)}:
                entry = RewardEntry(**{**fields, "form": RewardForm(fields["form"])})
                loaded = load(Path(path), entry)
                if isinstance(loaded, Grade):
                    answer = {"message": loaded.message, "traceback": loaded.traceback}
                else:
                    reward = loaded, entry
                    answer = {"loaded": entry.name}
            case {"kind": "grade", "rollouts": list(rollouts), "step": int(step)} if reward:
                grades = signatures.call(*reward, [Rollout(**rollout) for rollout in rollouts], step)
                answer = {"grades": [asdict(grade) for grade in grades]}
            case _:
                raise protocol.ProtocolError(f"unknown request {request.get('kind')!r}")
        stream.write(protocol.encode({"id": request["id"], **answer}))
        stream.flush()


def load(path: Path, entry: RewardEntry) -> Callable[..., Any] | Grade:
    """Execute the source and find its entry point; the grade of what that raised, if it did."""
    try:
        module = execute(decode_source(path.read_bytes()))
    except BaseException as error:  # noqa: BLE001 - user code runs here: SystemExit must not end the child
        return signatures.user_error(error)
    function = vars(module).get(entry.name)
    if not callable(function):
        return signatures.user_error(TypeError(f"`{entry.name}` is {type(function).__name__}, not a function"))
    return cast("Callable[..., Any]", function)


def execute(source: str) -> types.ModuleType:
    """The module that the source makes, known to `sys.modules` (dataclasses look there) and to tracebacks."""
    name = signatures.SOURCE_NAME
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType(Path(name).stem)
    sys.modules[module.__name__] = module
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))  # noqa: S102 - what this process is for
    return module
