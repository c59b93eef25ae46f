"""Runs one test of a completion's code. Its text is loaded as a reward into a sandbox of its own, and dies with it.

`prepare` runs while it is loaded, before any code of the completion: what fails there is never the completion's fault.
Only the standard library: nothing of ours is imported in there.
"""

import hashlib
import os
import resource
import sys
import tempfile
from types import CodeType
from typing import BinaryIO

MAX_OUTPUT_BYTES = 4 * 1024 * 1024


_prepared: list[tuple[BinaryIO, BinaryIO, CodeType | None]] = []
"""Files for the standard input and output, and the row's asserts."""


class UnfitTestsError(Exception):
    """The row's asserts are not Python."""


def prepare(memory_bytes: int, stdin: str, asserts: str | None) -> None:
    """Raises `UnfitTestsError`; anything else is the machine's fault."""
    try:
        compiled = None if asserts is None else compile(asserts, "test.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnfitTestsError(f"{type(error).__name__}: {error}") from None
    source, sink = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - they end with the process
    source.write(stdin.encode("utf-8", "backslashreplace"))
    source.seek(0)
    _prepared.append((source, sink, compiled))
    _, most = resource.getrlimit(resource.RLIMIT_AS)  # the operator's
    bound = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))


def run_test(completion: str) -> dict[str, object]:
    """`completion` is the code. Its standard output comes back as a digest only: who does not know what output is
    expected cannot make one up. An exception, of the code or of the asserts, is raised on.
    """
    ((source, sink, asserts),) = _prepared
    os.dup2(source.fileno(), 0)
    os.dup2(sink.fileno(), 1)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    namespace: dict[str, object] = {"__name__": "__main__", "exit": sys.exit, "quit": sys.exit}
    try:
        exec(compile(completion, "solution.py", "exec", dont_inherit=True), namespace)  # noqa: S102 - its purpose
    except SystemExit as error:
        if asserts is not None or error.code not in (None, 0):
            raise
    if asserts is not None:
        exec(asserts, namespace)  # noqa: S102 - its purpose
    sys.stdout.flush()
    sink.seek(0)
    output = sink.read(MAX_OUTPUT_BYTES).decode("utf-8", "backslashreplace")
    return {"score": 1.0, "output_sha256": output_sha256(output)}


def output_sha256(output: str) -> str:
    """Of the lines without the white space at their ends and the empty lines at the end."""
    lines = [line.rstrip() for line in output.rstrip().split("\n")]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()
