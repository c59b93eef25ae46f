"""Calling a reward in the form it was written in. Pure but for the clock; runs inside the child, on its main thread."""

import inspect
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from core.reward_source import RewardEntry, RewardForm
from worker.grading.arguments import batch_arguments, binder
from worker.grading.budget import begun_within
from worker.grading.grades import Grade, GradeOutcome, Rollout
from worker.grading.logged import ExtraLog, MetricLog
from worker.grading.returned import SOURCE_NAME, grade_of, grades_of, user_error

__all__ = ["SOURCE_NAME", "call", "user_error"]

CLOCK_SLACK_S = 0.001
"""What the timer may be ahead of the clock."""
_PLAIN = (int, float, dict, type(None))
"""What most rewards return; asking whether it can be awaited takes longer than all the rest of a small call."""
_SHAPE_ERRORS = ("TypeError", "AttributeError", "KeyError", "IndexError")


def call(
    function: Callable[..., Any],
    entry: RewardEntry,
    rollouts: Sequence[Rollout],
    step: int = 0,
    *,
    item_deadline_s: float | None = None,
    budget_s: float | None = None,
) -> list[Grade]:
    """Grade `rollouts` at the trainer's `step`: one grade each, in order, whatever the function does.

    A function of one rollout is asked about no more of them once `budget_s` is over: the grades are those of the first
    ones then, of one at least.

    When a batch function raises, the batch is graded again one rollout at a time, so that one bad row does not blank
    the others. A batch function that compares the rollouts of a batch gets groups of one there.

    `item_deadline_s` is what one rollout may take (a batch: that many times its size). It ends Python code, sleeps
    and regular expressions, by SIGALRM; what does not return from C is left to the caller of this process.
    """
    if item_deadline_s is None:
        return _call(function, entry, rollouts, step, None, budget_s)
    alarm = _Alarm(item_deadline_s)
    with alarm.installed():
        return _call(function, entry, rollouts, step, alarm, budget_s)


def _call(
    function: Callable[..., Any],
    entry: RewardEntry,
    rollouts: Sequence[Rollout],
    step: int,
    alarm: "_Alarm | None",
    budget_s: float | None,
) -> list[Grade]:
    if entry.form is not RewardForm.TRL:
        arguments_of = binder(entry)
        return [_call_one(function, arguments_of(one), alarm) for one in begun_within(rollouts, budget_s)]
    grades = _call_batch(function, entry, rollouts, step, alarm)
    if isinstance(grades, list):
        return grades
    if len(rollouts) == 1:
        return [grades]
    alone = (_call_batch(function, entry, [rollout], step, alarm) for rollout in rollouts)
    return [grade if isinstance(grade, Grade) else grade[0] for grade in alone]


@dataclass(slots=True)
class _Returned:
    value: Any
    seconds: float


class _OutOfTime(BaseException):
    """Raised into reward code. No `except Exception` of its own stops it."""


class _Alarm:
    """Rings once the time is over, and again and again: code may catch what it raises.

    Setting a timer takes longer than a small reward does. So it is set once and left running: when it rings too early
    for the call that is going on, it is set again for the rest.
    """

    def __init__(self, item_deadline_s: float) -> None:
        self._item_deadline_s = item_deadline_s
        self._is_set = False
        self._ends_at = 0.0
        """When the call's time is over, by the monotonic clock."""
        self._rings_at = 0.0
        self.deadline_s = item_deadline_s
        """Of the call that it was set for last."""
        self.has_rung = False

    @contextmanager
    def installed(self) -> Iterator[None]:
        before = signal.signal(signal.SIGALRM, self._ring)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)

    def set(self, size: int) -> None:
        """For one call with `size` rollouts."""
        self.deadline_s = self._item_deadline_s * size
        self._ends_at = time.monotonic() + self.deadline_s - CLOCK_SLACK_S
        self.has_rung = False
        self._is_set = True
        left_s, _ = signal.getitimer(signal.ITIMER_REAL)
        if not 0.0 < left_s <= self.deadline_s:  # the first call, or a reward has used the timer for its own ends
            self._start(self.deadline_s)

    def stop(self) -> None:
        self._is_set = False

    def _start(self, seconds: float) -> None:
        self._rings_at = time.monotonic() + seconds - CLOCK_SLACK_S
        signal.setitimer(signal.ITIMER_REAL, seconds, self.deadline_s)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if not self._is_set:
            return
        now = time.monotonic()
        if now >= self._ends_at:
            self.has_rung = True
            raise _OutOfTime
        is_ours = now >= self._rings_at
        self._start(max(self._ends_at - now, CLOCK_SLACK_S))
        if not is_ours:
            raise TimeoutError("an alarm that the reward has set itself")


def _call_one(function: Callable[..., Any], arguments: Mapping[str, Any], alarm: _Alarm | None) -> Grade:
    returned = _invoke(function, arguments, 1, alarm)
    return returned if isinstance(returned, Grade) else grade_of(returned.value, returned.seconds)


def _call_batch(
    function: Callable[..., Any],
    entry: RewardEntry,
    rollouts: Sequence[Rollout],
    step: int,
    alarm: _Alarm | None,
) -> list[Grade] | Grade:
    """One grade each, or the one grade of the exception that the call raised."""
    metrics, extra = MetricLog(), ExtraLog()
    arguments = batch_arguments(entry, rollouts, step, metrics, extra)
    returned = _invoke(function, arguments, len(rollouts), alarm)
    if isinstance(returned, Grade):
        return _with_hint(returned, rollouts)
    return grades_of(returned.value, len(rollouts), returned.seconds / len(rollouts), metrics, extra)


def _invoke(
    function: Callable[..., Any], arguments: Mapping[str, Any], size: int, alarm: _Alarm | None
) -> _Returned | Grade:
    started = time.perf_counter()
    answer: _Returned | Grade
    try:
        value = _run(function, arguments, size, alarm)
        answer = _Returned(value, time.perf_counter() - started)
    except BaseException as error:  # noqa: BLE001 - SystemExit too: nothing that user code raises ends the child
        answer = user_error(error, time.perf_counter() - started)
        if alarm is not None:  # again: it may have rung while it was being stopped
            alarm.stop()
    if alarm is None or not alarm.has_rung:
        return answer
    return Grade(  # whatever came of it: code may have caught the alarm and gone on
        GradeOutcome.INFRASTRUCTURE_ERROR,
        message=f"the reward gave no answer within {alarm.deadline_s:g} s",
        latency_s=time.perf_counter() - started,
        timed_out=True,
    )


def _run(function: Callable[..., Any], arguments: Mapping[str, Any], size: int, alarm: _Alarm | None) -> Any:
    if alarm is None:
        return _finish(function(**arguments))
    alarm.set(size)
    try:
        return _finish(function(**arguments))
    finally:
        alarm.stop()


def _finish(value: Any) -> Any:
    if isinstance(value, _PLAIN) or not inspect.isawaitable(value):
        return value
    import asyncio  # noqa: PLC0415 - half of what this process would load at its start, and few rewards need it

    return asyncio.run(_wait_for(value))


async def _wait_for(value: Awaitable[Any]) -> Any:
    return await value


def _with_hint(grade: Grade, rollouts: Sequence[Rollout]) -> Grade:
    """Text or messages is what batch functions are most often wrong about; say which one it was."""
    assert grade.message is not None
    if not grade.message.startswith(_SHAPE_ERRORS):
        return grade
    if isinstance(rollouts[0].prompt, str):
        hint = "completions are plain text here, because the prompts are"
    else:
        hint = "completions are lists of messages here, because the prompts are: read completion[0]['content']"
    return replace(grade, message=f"{grade.message} ({hint})")
