"""The grading process: loads one reward, answers `load` and `grade` frames until its client closes the connection.

It is started with an empty environment, on an interpreter that has read no site configuration: in a sandbox by
`worker.grading.inside`, else by `worker.grading.plain`. Reward code runs on the main thread (libraries that use
`signal.alarm` work), and shares the process with this loop: it can break its own grading, never the client's.
"""

import faulthandler
import io
import linecache
import os
import signal
import socket
import sys
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from core.reward_source import RewardEntry, RewardForm
from worker.grading import protocol, signatures, stand_ins
from worker.grading.grades import Grade, Rollout
from worker.parent import die_with

_RARE_FIELDS = ("message", "traceback", "metrics", "extra", "timed_out")


def main() -> None:
    """Without a sandbox: `argv[1:]` is the descriptor of the connected socket and the process id of the client."""
    descriptor, client_pid = int(sys.argv[1]), int(sys.argv[2])
    die_with(client_pid, signal.SIGKILL)
    run(descriptor, tidy_up=lambda: None)


def run(descriptor: int, *, tidy_up: Callable[[], None]) -> None:
    """Serve the client at the other end of a connected socket until it closes it; `tidy_up` after each request."""
    os.environ.clear()  # PEP 538 may have put LC_CTYPE there, bwrap PWD
    sys.argv[:] = [signatures.SOURCE_NAME]
    faulthandler.enable()
    cast("io.TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as stream:
        serve(cast("BinaryIO", stream), tidy_up)


def serve(stream: BinaryIO, tidy_up: Callable[[], None]) -> None:
    grade: Callable[..., list[Grade]] | None = None
    while (request := protocol.read_frame(stream)) is not None:
        answer: dict[str, Any]
        match request:
            case {"kind": "load", "source": str(source), "entry": dict(fields)}:
                entry = RewardEntry(**{**fields, "form": RewardForm(fields["form"])})
                loaded = load(source, entry)
                if isinstance(loaded, Grade):
                    answer = {"message": loaded.message, "traceback": loaded.traceback}
                else:
                    grade = partial(signatures.call, loaded, entry)
                    answer = {"loaded": entry.name}
            case {"kind": "load", "builtin": str(name), "parameters": dict(parameters)}:
                grade = load_builtin(name, parameters)
                answer = {"loaded": name}
            case {"kind": "grade", "rollouts": list(rollouts), "step": int(step)} if grade:
                given = [Rollout(**rollout) for rollout in rollouts]
                times = {name: request.get(name) for name in ("item_deadline_s", "budget_s")}
                grades = grade(given, step, **times)
                answer = {"grades": [as_json(one) for one in grades]}
            case _:
                raise protocol.ProtocolError(f"unknown request {request.get('kind')!r}")
        tidy_up()
        stream.write(protocol.encode({"id": request["id"], **answer}))
        stream.flush()


def as_json(grade: Grade) -> dict[str, Any]:
    """Without the rare fields where they say nothing: most grades are a number, and a batch has many."""
    answer: dict[str, Any] = {"outcome": grade.outcome, "value": grade.value, "latency_s": grade.latency_s}
    if grade.message or grade.traceback or grade.metrics or grade.extra or grade.timed_out:
        answer |= {name: value for name in _RARE_FIELDS if (value := getattr(grade, name))}
    return answer


def load(source: str, entry: RewardEntry) -> Callable[..., Any] | Grade:
    """Execute the source and find its entry point; the grade of what that raised, if it did."""
    try:
        module = execute(source)
    except BaseException as error:  # noqa: BLE001 - user code runs here: SystemExit must not end the child
        return signatures.user_error(error)
    function = vars(module).get(entry.name)
    if not callable(function):
        return signatures.user_error(TypeError(f"`{entry.name}` is {type(function).__name__}, not a function"))
    return cast("Callable[..., Any]", function)


def load_builtin(name: str, parameters: Mapping[str, Any]) -> Callable[..., list[Grade]]:
    from worker.grading import builtins  # noqa: PLC0415 - pydantic takes longer to load than all the rest

    return builtins.load(name, parameters)


def execute(source: str) -> types.ModuleType:
    """The module that the source makes, known to `sys.modules` (dataclasses look there) and to tracebacks."""
    stand_ins.install()
    name = signatures.SOURCE_NAME
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    module = types.ModuleType(Path(name).stem)
    sys.modules[module.__name__] = module
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))  # noqa: S102 - what this process is for
    return module
