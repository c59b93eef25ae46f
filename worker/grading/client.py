"""Grading from the trainer's side: rollouts in, one `Grade` each out, whatever reward code does.

Reward code runs in a process of its own (`worker.grading.process` says what that protects from, and what not).
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from core.errors import InvalidReward, Problem, ServiceError
from core.reward_source import RewardEntry, RewardForm, analyse, decode_source
from worker.grading.arguments import as_json
from worker.grading.grades import Grade, GradeOutcome, Rollout, combine
from worker.grading.process import GradingProcess, OutputTail, ProcessBrokenError
from worker.grading.protocol import ProtocolError
from worker.grading.received import read_grade

__all__ = ["Grade", "GradeOutcome", "Grader", "GraderFailed", "Rollout", "combine"]

log = structlog.get_logger()

ALARM_GRACE_S = 0.25
"""What a rollout's own alarm may come late before the process is killed instead."""


_BATCH_DEADLINES = 3
"""What a call of `grade` takes at most."""
_NOT_TRIED = Grade(
    GradeOutcome.INFRASTRUCTURE_ERROR,
    message="not tried: the time of its batch was used up by others",
    timed_out=True,
)


class GraderFailed(ServiceError):
    """The grading process crashed or hung while it loaded the reward."""

    code = "grader_failed"
    default_fix = "Load the reward's file with Python by itself: importing it must end, and quickly."


class Grader:
    """One reward in one grading process; a context manager, for one thread.

    As many rollouts are asked about at once as `batch_deadline_s` has room for, when each takes `item_deadline_s`; a
    function of a whole batch gets it whole, and up to two batch deadlines. What crashes the process is tried once more
    as it is, then, as what passes its deadline, one rollout at a time, so that only the rollouts at fault get
    `infrastructure_error`. A call of `grade` takes at most three batch deadlines, beside restarts: less than the
    supervisor's watchdog takes for a hang. What has not been graded by then is not tried.
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
            self._process = self._start()
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

    def grade(self, rollouts: Sequence[Rollout], *, step: int = 0) -> list[Grade]:
        """One grade per rollout, in order. Never raises for what reward code does."""
        grades: list[Grade] = []
        end_s = self._asked_s + _BATCH_DEADLINES * self._batch_deadline_s
        size = max(1, self._rollouts_at_once(len(rollouts)))
        for start in range(0, len(rollouts), size):
            grades += self._grade_part(rollouts[start : start + size], step, end_s)
        return grades

    def _rollouts_at_once(self, count: int) -> int:
        if self._entry is not None and self._entry.form is RewardForm.TRL:  # it may compare the rollouts of a batch
            return count
        return int(self._batch_deadline_s / self._item_deadline_s)

    def _grade_part(self, rollouts: Sequence[Rollout], step: int, end_s: float) -> list[Grade]:
        items_s = len(rollouts) * self._item_deadline_s + ALARM_GRACE_S
        deadline_s = min(max(self._batch_deadline_s, items_s), (_BATCH_DEADLINES - 1) * self._batch_deadline_s)
        is_alone = len(rollouts) == 1
        answer = self._try(rollouts, step, deadline_s, end_s)
        if isinstance(answer, Grade) and (is_alone or not answer.timed_out) and self._asked_s < end_s:  # once more
            answer = self._try(rollouts, step, deadline_s, end_s)
        if isinstance(answer, list):
            return answer
        return [answer] if is_alone else self._grade_one_by_one(rollouts, step, end_s)

    def _grade_one_by_one(self, rollouts: Sequence[Rollout], step: int, end_s: float) -> list[Grade]:
        grades: list[Grade] = []
        for rollout in rollouts:
            answer = self._try([rollout], step, self._item_deadline_s + ALARM_GRACE_S, end_s)
            grades += answer if isinstance(answer, list) else [answer]
        return grades

    def _try(self, rollouts: Sequence[Rollout], step: int, deadline_s: float, end_s: float) -> list[Grade] | Grade:
        """One grade each, or the one grade of what broke the process."""
        deadline_s = min(deadline_s, end_s - self._asked_s)
        if deadline_s <= 0:
            return _NOT_TRIED
        before_s = self._asked_s
        try:
            return self._ask(rollouts, step, deadline_s)
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

    def _ask(self, rollouts: Sequence[Rollout], step: int, deadline_s: float) -> list[Grade]:
        process, started = self._running(), time.monotonic()
        request = {
            "kind": "grade",
            "step": step,
            "item_deadline_s": self._item_deadline_s,
            "rollouts": [as_json(rollout, self._entry) for rollout in rollouts],
        }
        try:
            grades = process.ask(request, deadline_s, answers=len(rollouts)).get("grades")
            if not isinstance(grades, list):
                process.fail("sent what are not grades")
            if len(grades) != len(rollouts):
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
        return [read_grade(grade, passed_s) for grade in grades]

    def _running(self) -> GradingProcess:
        if self._process is None:
            self.restarts += 1
            try:
                self._process = self._start()
            except InvalidReward as error:
                raise ProcessBrokenError(f"the reward could be loaded before, but not again: {error}") from error
        return self._process

    def _start(self) -> GradingProcess:
        assert self._folder is not None, "enter the grader first"
        process = GradingProcess(Path(self._folder.name), self.output)
        try:
            _check_loaded(process.ask(self._load_request(), self._load_deadline_s))
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
