"""Runs one test of a completion's code. Its text is loaded as a reward into a sandbox of its own, and dies with it.

Only the standard library: nothing of ours is imported in there.
"""

import hashlib
import os
import resource
import sys
import tempfile

MAX_OUTPUT_BYTES = 4 * 1024 * 1024


def run_test(completion: str, stdin: str, asserts: str | None, memory_bytes: int) -> dict[str, object]:
    """`completion` is the code. Its standard output comes back as a digest only: who does not know what output is
    expected cannot make one up. An exception, of the code or of the asserts, is raised on.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    with tempfile.TemporaryFile() as source, tempfile.TemporaryFile() as sink:
        source.write(stdin.encode("utf-8", "backslashreplace"))
        source.seek(0)
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
            exec(compile(asserts, "test.py", "exec", dont_inherit=True), namespace)  # noqa: S102 - its purpose
        sys.stdout.flush()
        sink.seek(0)
        output = sink.read(MAX_OUTPUT_BYTES).decode("utf-8", "backslashreplace")
    return {"score": 1.0, "output_sha256": output_sha256(output)}


def output_sha256(output: str) -> str:
    """Of the lines without the white space at their ends and the empty lines at the end."""
    lines = [line.rstrip() for line in output.rstrip().split("\n")]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()
