"""The `code_tests` reward: the completion's code against the row's tests, a sandbox for each. Runs outside of one."""

import math
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from core.builtin_rewards.outside import CodeTests
from core.errors import ServiceError
from core.reward_source import RewardEntry, RewardForm
from core.strict_json import strict_json
from worker.grading.builtins import code_harness
from worker.grading.builtins.outcomes import UnfitDataError, last_fence, read_after, reference
from worker.grading.grades import Grade, GradeOutcome, Rollout
from worker.grading.process import GradingProcess, OutputTail, ProcessBrokenError, ProcessUnaskableError
from worker.grading.protocol import ProtocolError

MAX_TESTS = 100
MAX_TEST_CHARS = 1024**2
"""Of asserts, or of an input: a sandbox with the least memory still holds that."""
BATCH_DEADLINE_S = 240.0
START_DEADLINE_S = 30.0
GRACE_S = 0.5
"""What a test's own alarm may come late before its sandbox is ended instead."""

_ENTRY = RewardEntry(
    name="run_test",
    form=RewardForm.PER_SAMPLE,
    provided=("completion",),
    columns=(),
    optional_columns=(),
    takes_any=False,
    is_async=False,
)
_HARNESS = Path(code_harness.__file__).read_text("utf-8")


class SandboxFailedError(Exception):
    """A sandbox could not be started or prepared: nothing is known about the code."""


class OutOfTimeError(Exception):
    """The time of the batch is over: nothing is known about the code."""


@dataclass(frozen=True, slots=True)
class CodeTest:
    """Asserts that run after the code, or what the code must print when it reads `stdin`."""

    asserts: str | None = None
    stdin: str = ""
    output_sha256: str | None = None


class CodeTestsGrader:
    """A context manager like `worker.grading.client.Grader`, for one thread; it runs as many tests at once as it
    may use CPUs."""

    def __init__(
        self, parameters: CodeTests, *, sandboxed: bool | None = None, batch_deadline_s: float = BATCH_DEADLINE_S
    ) -> None:
        """`sandboxed` as for `GradingProcess`. No test goes on after `batch_deadline_s`."""
        self._parameters = parameters
        self._sandboxed = sandboxed
        self._batch_deadline_s = batch_deadline_s
        self._pool = ThreadPoolExecutor(len(os.sched_getaffinity(0)), thread_name_prefix="code-tests")
        self._is_closed = threading.Event()
        self.output = OutputTail()
        """Always empty: what tests print is compared, not kept."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Waits for nothing: a test that still runs ends by its own deadline, and no other one begins."""
        self._is_closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def grade(self, rollouts: Sequence[Rollout], *, step: int = 0, until: float | None = None) -> list[Grade]:
        """One grade per rollout, in order; never raises for what code does. `until`: of the monotonic clock."""
        deadline = min(time.monotonic() + self._batch_deadline_s, math.inf if until is None else until)
        return list(self._pool.map(partial(self._grade, deadline), rollouts))

    def _grade(self, deadline: float, rollout: Rollout) -> Grade:
        started = time.monotonic()
        grade = self._run_all(rollout, deadline)
        return replace(grade, latency_s=time.monotonic() - started)

    def _run_all(self, rollout: Rollout, deadline: float) -> Grade:
        try:
            tests = read_tests(reference(rollout, self._parameters.column), self._parameters.column)
            if not tests:
                return Grade(GradeOutcome.NO_ANSWER)
            share = self._share_passed(code_of(rollout.completion, self._parameters.after), tests, deadline)
        except UnfitDataError as error:
            return Grade(GradeOutcome.USER_ERROR, message=str(error))
        except SandboxFailedError as error:
            return Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message=str(error))
        except OutOfTimeError:
            message = "not tried to the end: the time of its batch was used up"
            return Grade(GradeOutcome.INFRASTRUCTURE_ERROR, message=message, timed_out=True)
        return Grade(GradeOutcome.SCORED, share, {"code_tests/passed": share})

    def _share_passed(self, code: str, tests: Sequence[CodeTest], deadline: float) -> float:
        """1 or 0 where all must pass: then the first failure is the last test that is run."""
        if self._parameters.require == "all":
            return float(all(self._passes(code, test, deadline) for test in tests))
        return sum(self._passes(code, test, deadline) for test in tests) / len(tests)

    def _passes(self, code: str, test: CodeTest, deadline: float) -> bool:
        if self._is_closed.is_set() or time.monotonic() >= deadline:
            raise OutOfTimeError
        with tempfile.TemporaryDirectory(prefix="podium-test-", ignore_cleanup_errors=True) as folder:
            try:
                process = GradingProcess(Path(folder), OutputTail(), sandboxed=self._sandboxed)
            except (ProcessBrokenError, ServiceError) as error:
                raise SandboxFailedError(str(error)) from error
            try:
                return self._ask(process, code, test, deadline)
            finally:
                process.close()

    def _ask(self, process: GradingProcess, code: str, test: CodeTest, deadline: float) -> bool:
        self._prepare(process, test, deadline)
        try:
            answer = process.ask(
                self._request(code), min(self._parameters.timeout_s + GRACE_S, deadline - time.monotonic())
            )
        except ProcessUnaskableError as error:
            raise SandboxFailedError(str(error)) from error
        except ProcessBrokenError as error:  # the code crashed, hung, or took the process down
            if time.monotonic() >= deadline:
                raise OutOfTimeError from error
            return False
        except ProtocolError as error:
            raise SandboxFailedError(f"the code cannot be sent to its sandbox: {error}") from error
        return _is_passed(answer, test)

    def _prepare(self, process: GradingProcess, test: CodeTest, deadline: float) -> None:
        """Before any code of the completion runs, so the answer can be trusted."""
        memory_bytes = self._parameters.memory_mb * 1024**2
        call = f"prepare({memory_bytes}, {test.stdin!a}, {test.asserts!a})"
        load = {"kind": "load", "source": f"{_HARNESS}\n{call}\n", "entry": asdict(_ENTRY)}
        try:
            answer = process.ask(load, min(START_DEADLINE_S, deadline - time.monotonic()))
        except (ProcessBrokenError, ProtocolError) as error:
            if time.monotonic() >= deadline:
                raise OutOfTimeError from error
            raise SandboxFailedError(str(error)) from error
        if "loaded" in answer:
            return
        message = str(answer.get("message"))
        if message.startswith(f"{code_harness.UnfitTestsError.__name__}: "):
            raise UnfitDataError(f"the column `{self._parameters.column}` has asserts that are not Python: {message}")
        raise SandboxFailedError(f"the sandbox of a test cannot be prepared: {message}")

    def _request(self, code: str) -> dict[str, Any]:
        rollout = Rollout("", code, [], {})
        return {
            "kind": "grade",
            "step": 0,
            "item_deadline_s": self._parameters.timeout_s,
            "rollouts": [asdict(rollout)],
        }


def code_of(completion: str, after: str | None) -> str:
    """The last Markdown fence, or the whole text without one."""
    text = read_after(completion, after)
    fence = last_fence(text)
    return text if fence is None else fence


def read_tests(value: Any, column: str) -> list[CodeTest]:
    """The tests that a column holds; none where it is null. Raises `UnfitDataError`."""
    refuse = partial(_refuse, column)
    if isinstance(value, str):
        value = _json_or_text(value)
    match value:
        case None:
            tests = []
        case str():
            tests = [CodeTest(asserts=value)]
        case {"fn_name": _}:
            raise refuse("has `fn_name`: tests that call a function by name must be written as asserts")
        case {"inputs": list(inputs), "outputs": list(outputs)} if len(inputs) == len(outputs):
            tests = [_example(*pair, refuse) for pair in zip(inputs, outputs, strict=True)]
        case list(items):
            tests = [_test(item, refuse) for item in items]
        case _:
            raise refuse("holds neither asserts nor inputs with outputs")
    if len(tests) > MAX_TESTS:
        raise refuse(f"holds {len(tests)} tests; a row may have {MAX_TESTS}")
    if any(len(test.asserts or test.stdin) > MAX_TEST_CHARS for test in tests):
        raise refuse(f"has a test of more than {MAX_TEST_CHARS:,} characters")
    return tests


def _json_or_text(text: str) -> Any:
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, list | dict) else text


def _test(item: Any, refuse: Any) -> CodeTest:
    match item:
        case str():
            return CodeTest(asserts=item)
        case {"input": stdin, "output": output}:
            return _example(stdin, output, refuse)
    raise refuse("has a test that is neither asserts nor an object with `input` and `output`")


def _example(stdin: Any, output: Any, refuse: Any) -> CodeTest:
    if not isinstance(stdin, str) or not isinstance(output, str):
        raise refuse("has a test whose input or output is not text")
    return CodeTest(stdin=stdin, output_sha256=code_harness.output_sha256(output))


def _refuse(column: str, message: str) -> UnfitDataError:
    return UnfitDataError(f"the column `{column}` {message}")


def _is_passed(answer: Mapping[str, Any], test: CodeTest) -> bool:
    match answer.get("grades"):
        case [{"outcome": "scored", "value": 1.0, "extra": {"output_sha256": str(digest)}}]:
            return test.output_sha256 is None or digest == test.output_sha256
    return False
