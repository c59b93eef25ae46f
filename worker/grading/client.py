"""Grading from the trainer's side: rollouts in, one `Grade` each out, whatever reward code does.

Reward code runs in a process of its own (`worker.grading.process` says what that protects from, and what not).
"""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from core.errors import InvalidReward, Problem, ServiceError
from core.reward_source import RewardEntry, RewardForm, analyse, decode_source
from worker.grading.arguments import as_json
from worker.grading.budget import begun_within
from worker.grading.grades import Grade, GradeOutcome, Rollout, combine
from worker.grading.process import GradingProcess, OutputTail, ProcessBrokenError, ProcessUnaskableError
from worker.grading.protocol import ProtocolError
from worker.grading.received import read_grades

__all__ = ["Grade", "GradeOutcome", "Grader", "GraderFailed", "Rollout", "combine"]

log = structlog.get_logger()

ALARM_GRACE_S = 0.25
"""What a rollout's own alarm may come late before the process is killed instead."""
MOST_AT_ONCE = 64
"""Rollouts in one request. More would gain nothing, and where one of them crashes the process, all are asked about
again one by one.
"""
_REQUESTS_A_DEADLINE = 6
"""Requests for which a batch deadline has time, where rollouts are slow."""
_BATCH_DEADLINES = 3
"""What a call of `grade` takes at most."""
NOT_TRIED = Grade(
    GradeOutcome.INFRASTRUCTURE_ERROR,
    message="not tried: the time of its batch was used up by others",
    timed_out=True,
)
"""Of a rollout that there was no time for."""


class GraderFailed(ServiceError):
    """The grading process crashed or hung while it loaded the reward."""

    code = "grader_failed"
    default_fix = "Load the reward's file with Python by itself: importing it must end, and quickly."


class GraderNotStarted(GraderFailed):
    """There is no grading process: the machine's fault, and nothing is known about the reward."""

    code = "grader_not_started"
    status = 503
    type = "server_error"
    default_fix = "Try again. If it stays, look at the worker's machine: descriptors, processes, memory."


class _NotStartedError(ProcessBrokenError):
    """As `GraderNotStarted`."""


@dataclass(frozen=True, slots=True)
class _End:
    """Of one call of `grade`: whichever comes first."""

    asked_s: float
    """Of the time in which the process had a request, starts apart."""
    until: float
    """Of the monotonic clock, starts included."""


class Grader:
    """One reward in one grading process; a context manager, for one thread.

    Rollouts are asked about `MOST_AT_ONCE` at a time, and the process answers as many as it could begin early enough
    within `batch_deadline_s`; a function of a whole batch gets it whole, and up to two batch deadlines. What crashes
    the process is tried once more as it is, then, as what passes its deadline, one rollout at a time, so that only the
    rollouts at fault get `infrastructure_error`. A call of `grade` takes at most three batch deadlines, beside
    restarts: less than the supervisor's watchdog takes for a hang. What has not been graded by then, or by `until`, is
    not tried.
    """

    _what = "reward"
    _fix: str | None = None
    """For a process that breaks while it loads; unset: the error's own."""

    def __init__(
        self,
        source: Path,
        *,
        entry_point: str | None = None,
        form: RewardForm | None = None,
        batch_deadline_s: float = 60.0,
        item_deadline_s: float = 5.0,
        load_deadline_s: float = 60.0,
    ) -> None:
        self._source = source.resolve()
        self._entry_point = entry_point
        self._form = form
        self._batch_deadline_s = batch_deadline_s
        self._item_deadline_s = item_deadline_s
        self._load_deadline_s = load_deadline_s
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: GradingProcess | None = None
        self._entry: RewardEntry | None = None
        self._asked_s = 0.0
        """Time in which the process had a request, starts apart."""
        self.output = OutputTail()
        """What reward code wrote to standard output and error, over all restarts."""
        self.restarts = 0

    def __enter__(self) -> Self:
        """Start and load; raises `InvalidReward` when the source cannot be loaded, `GraderFailed` when that crashes."""
        self._prepare()
        self._folder = tempfile.TemporaryDirectory(prefix="podium-grader-", ignore_cleanup_errors=True)
        try:
            self._process = self._start(self._load_deadline_s)
        except (_NotStartedError, ProcessUnaskableError) as error:
            self.close()
            raise GraderNotStarted(f"The {self._what} cannot be loaded: {error}.") from error
        except ProcessBrokenError as error:
            self.close()
            message = f"Loading the {self._what} failed: {error}. {self.output.text()[-2000:]}".strip()
            raise GraderFailed(message, fix=self._fix) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        self.close()

    @property
    def entry(self) -> RewardEntry:
        assert self._entry is not None, "enter the grader first"
        return self._entry

    @property
    def pid(self) -> int | None:
        """Of the grading process, while there is one."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        self._stop()
        if self._folder is not None:
            self._folder.cleanup()

    def grade(self, rollouts: Sequence[Rollout], *, step: int = 0, until: float | None = None) -> list[Grade]:
        """One grade per rollout, in order. Never raises for what reward code does.

        `until`: of the monotonic clock; restarts of the process count, too. What was not tried by then says so.
        """
        grades: list[Grade] = []
        asked_s = self._asked_s + _BATCH_DEADLINES * self._batch_deadline_s
        end = _End(asked_s, math.inf if until is None else until)
        size = self._rollouts_at_once(len(rollouts))
        while len(grades) < len(rollouts):
            grades += self._grade_part(rollouts[len(grades) : len(grades) + size], step, end)
        return grades

    @property
    def _takes_batches(self) -> bool:
        """Whole ones: the function may compare the rollouts of a batch."""
        return self._entry is not None and self._entry.form is RewardForm.TRL

    def _rollouts_at_once(self, count: int) -> int:
        if self._takes_batches:
            return count
        return MOST_AT_ONCE if self._budget_s else 1

    @property
    def _budget_s(self) -> float:
        """How long the process begins with one rollout after another: where one crashes it, little is done again."""
        longest_s = self._batch_deadline_s - self._item_deadline_s - ALARM_GRACE_S
        return max(0.0, min(self._batch_deadline_s / _REQUESTS_A_DEADLINE, longest_s))

    def _deadline_s(self, count: int) -> float:
        """Of one request. A process whose own alarm does not end its last rollout hangs."""
        if self._takes_batches:
            items_s = count * self._item_deadline_s + ALARM_GRACE_S
            return min(max(self._batch_deadline_s, items_s), (_BATCH_DEADLINES - 1) * self._batch_deadline_s)
        if self._entry is None:  # built-ins bound their own work, and not by the alarm
            return max(self._batch_deadline_s, self._item_deadline_s + ALARM_GRACE_S)
        return self._budget_s + self._item_deadline_s + 2 * ALARM_GRACE_S

    def _grade_part(self, rollouts: Sequence[Rollout], step: int, end: _End) -> list[Grade]:
        """Of the first ones, as many as there was time for; of one at least."""
        deadline_s = self._deadline_s(len(rollouts))
        is_alone = len(rollouts) == 1
        answer = self._try(rollouts, step, deadline_s, end)
        if isinstance(answer, Grade) and (is_alone or not answer.timed_out) and self._left_s(end) > 0:  # once more
            answer = self._try(rollouts, step, deadline_s, end)
        if isinstance(answer, list):
            return answer
        return [answer] if is_alone else self._grade_one_by_one(rollouts, step, end)

    def _grade_one_by_one(self, rollouts: Sequence[Rollout], step: int, end: _End) -> list[Grade]:
        """As long as a request of all of them would have gone on."""
        grades: list[Grade] = []
        for rollout in begun_within(rollouts, None if self._takes_batches else self._budget_s):
            answer = self._try([rollout], step, self._item_deadline_s + ALARM_GRACE_S, end)
            grades += answer if isinstance(answer, list) else [answer]
        return grades

    def _try(self, rollouts: Sequence[Rollout], step: int, deadline_s: float, end: _End) -> list[Grade] | Grade:
        """One grade each (`_grade_part`), or the one grade of what broke the process."""
        before_s = self._asked_s
        try:
            process = self._running(end)
            deadline_s = min(deadline_s, self._left_s(end))
            return NOT_TRIED if process is None or deadline_s <= 0 else self._ask(process, rollouts, step, deadline_s)
        except ProcessBrokenError as error:
            seconds = self._asked_s - before_s
            output = self.output.text()[-2000:]  # Python writes there where it crashed
            return Grade(
                GradeOutcome.INFRASTRUCTURE_ERROR,
                message=str(error),
                traceback=output or None,
                latency_s=seconds,
                timed_out=seconds >= deadline_s,
            )

    def _left_s(self, end: _End) -> float:
        return min(end.asked_s - self._asked_s, end.until - time.monotonic())

    def _ask(self, process: GradingProcess, rollouts: Sequence[Rollout], step: int, deadline_s: float) -> list[Grade]:
        started = time.monotonic()
        last_begin_s = deadline_s - self._item_deadline_s - ALARM_GRACE_S
        request = {
            "kind": "grade",
            "step": step,
            "item_deadline_s": self._item_deadline_s,
            "budget_s": None if self._takes_batches else max(0.0, min(self._budget_s, last_begin_s)),
            "rollouts": [as_json(rollout, self._entry) for rollout in rollouts],
        }
        try:
            grades = process.ask(request, deadline_s, answers=len(rollouts)).get("grades")
            if not isinstance(grades, list):
                process.fail("sent what are not grades")
            least = len(rollouts) if self._takes_batches else 1
            if not least <= len(grades) <= len(rollouts):
                process.fail(f"sent {len(grades)} grades for {len(rollouts)} rollouts")
        except ProtocolError as error:  # a batch too large to send; its rollouts may go one by one
            raise ProcessBrokenError(str(error)) from error
        except ProcessBrokenError as error:
            self._stop()
            log.warning("grading_process_broken", reason=str(error), rollouts=len(rollouts))
            raise
        finally:
            self._asked_s += time.monotonic() - started
        passed_s = time.monotonic() - started
        return read_grades(grades, passed_s)

    def _running(self, end: _End) -> GradingProcess | None:
        """Started again if need be; None when the time is over by then."""
        if self._left_s(end) <= 0:
            return None
        if self._process is None:
            self.restarts += 1
            try:
                self._process = self._start(min(self._load_deadline_s, end.until - time.monotonic()))
            except InvalidReward as error:
                raise ProcessBrokenError(f"the reward could be loaded before, but not again: {error}") from error
            except ProcessBrokenError:
                if self._left_s(end) <= 0:
                    return None
                raise
        return self._process

    def _start(self, load_deadline_s: float) -> GradingProcess:
        assert self._folder is not None, "enter the grader first"
        try:
            process = GradingProcess(Path(self._folder.name), self.output)
        except ProcessBrokenError as error:
            raise _NotStartedError(str(error)) from error
        try:
            _check_loaded(process.ask(self._load_request(), load_deadline_s))
        except BaseException:
            process.close()
            raise
        return process

    def _prepare(self) -> None:
        """What can be said of the reward before a process is started for it."""
        source = decode_source(self._source.read_bytes())
        self._entry = analyse(source, entry_point=self._entry_point, form=self._form)

    def _load_request(self) -> dict[str, Any]:
        return {"kind": "load", "source": decode_source(self._source.read_bytes()), "entry": asdict(self.entry)}

    def _stop(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None


def _check_loaded(answer: dict[str, Any]) -> None:
    if "loaded" in answer:
        return
    problem = Problem(
        "source",
        f"loading it raised {answer.get('message')}\n{str(answer.get('traceback'))[-2000:]}",
        "load_error",
        "Load the file with Python by itself, with the packages of the worker, and correct what it raises.",
    )
    raise InvalidReward.of([problem], subject="The reward")
