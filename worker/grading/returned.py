"""From what a reward returned, or raised, to grades."""

import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from worker.grading.grades import Grade, GradeOutcome
from worker.grading.logged import MAX_TRACEBACK_CHARS, ExtraLog, MetricLog, split_fields
from worker.grading.values import UnusableRewardError, storable, to_number

SOURCE_NAME = "reward.py"
"""The file name that reward code is compiled under: tracebacks show this file only."""

_NUMBERS = (int, float)
_VALUE_KEYS = ("score", "reward")


def grade_of(value: Any, seconds: float, where: str = "") -> Grade:
    """One rollout's grade: `value` is None, a number, a dictionary with `score` or `reward`, or an object with
    `.score`. `where` is added to what is wrong with it.
    """
    try:
        return _read(value, seconds)
    except UnusableRewardError as error:
        return unusable(f"{error}{where}", seconds)
    except BaseException as error:  # noqa: BLE001 - a returned object's own methods are user code too
        return user_error(error, seconds)


def grades_of(returned: object, count: int, seconds: float, metrics: MetricLog, extra: ExtraLog) -> list[Grade]:
    """The grades of a batch; `seconds` is the share of one rollout. A wrong count is an error of all."""
    try:
        values = _values(returned, count)
    except UnusableRewardError as error:
        return [unusable(str(error), seconds)] * count
    except BaseException as error:  # noqa: BLE001 - a returned object's own methods are user code too
        return [user_error(error, seconds)] * count
    means = metrics.means()
    grades = [grade_of(value, seconds, f" for index {index}") for index, value in enumerate(values)]
    return [
        replace(grade, metrics={**means, **grade.metrics}, extra={**extra.row(index), **grade.extra})
        for index, grade in enumerate(grades)
    ]


def user_error(error: BaseException, latency_s: float = 0.0) -> Grade:
    """The grade for what reward code raised; frames outside of its source are left out."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename != SOURCE_NAME:
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames, limit=-20))
    return Grade(
        GradeOutcome.USER_ERROR,
        message=storable(_summary(error)),
        traceback=storable(text[-MAX_TRACEBACK_CHARS:]),
        latency_s=latency_s,
    )


def unusable(message: str, seconds: float) -> Grade:
    return Grade(GradeOutcome.USER_ERROR, message=f"the reward {message}", latency_s=seconds)


def _read(value: Any, seconds: float) -> Grade:
    if isinstance(value, _NUMBERS):
        return Grade(GradeOutcome.SCORED, to_number(value), latency_s=seconds)
    metrics: dict[str, float] = {}
    extra: dict[str, Any] = {}
    if isinstance(value, Mapping):
        fields: Mapping[Any, Any] = value
        key = next((key for key in _VALUE_KEYS if key in fields), None)
        if key is None:
            raise UnusableRewardError("returned a dictionary without `score` or `reward`")
        _refuse_invalid(fields.get("is_score_valid"), fields.get("reason"))
        metrics, extra = split_fields({**_metric_scores(fields.get("metrics")), **_told(fields)}, without=key)
        value = fields[key]
    elif hasattr(value, "score"):
        _refuse_invalid(getattr(value, "is_score_valid", None), getattr(value, "reason", None))
        metrics, extra = split_fields(_metric_scores(getattr(value, "metrics", None)), without="")
        value = value.score
    if value is None:
        return Grade(GradeOutcome.NO_ANSWER, metrics=metrics, extra=extra, latency_s=seconds)
    return Grade(GradeOutcome.SCORED, to_number(value), metrics, latency_s=seconds, extra=extra)


def _told(fields: Mapping[Any, Any]) -> dict[Any, Any]:
    return {name: value for name, value in fields.items() if name not in {"metrics", "is_score_valid"}}


def _metric_scores(metrics: object) -> dict[str, Any]:
    """reward-kit's metrics: results with a `score` of their own, or plain numbers."""
    if not isinstance(metrics, Mapping):
        return {}
    return {str(name): _score(metric) for name, metric in metrics.items()}


def _score(metric: object) -> Any:
    return metric.get("score") if isinstance(metric, Mapping) else getattr(metric, "score", metric)


def _refuse_invalid(is_valid: object, reason: object) -> None:
    """reward-kit's way to say that the grading failed and the score means nothing."""
    if is_valid is False:
        raise UnusableRewardError(f"said that its score is not valid: {storable(str(reason)[:300])}")


def _values(returned: object, count: int) -> list[Any]:
    """A batch function's rewards as a list; arrays are fine."""
    to_list = getattr(returned, "tolist", None)
    values = to_list() if callable(to_list) else returned
    if not isinstance(values, list | tuple):
        raise UnusableRewardError(f"returned {type(returned).__name__}, not a list of {count} rewards")
    values = list(values)
    if len(values) != count:
        lost = f"none for index {len(values)}" if len(values) < count else f"index {count} has no completion"
        raise UnusableRewardError(f"returned {len(values)} rewards for {count} completions: {lost}")
    return values


def _summary(error: BaseException) -> str:
    """`KeyError: 'answer'`, on one line."""
    try:
        text = " ".join(str(error)[:2000].split())[:500]
    except BaseException:  # noqa: BLE001 - `__str__` of an exception is user code too
        text = "(its text cannot be made)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
