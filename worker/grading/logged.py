"""What rewards report beside their value: TRL's `log_metric` and `log_extra`, within bounds."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from worker.grading.grades import Grade
from worker.grading.values import UnusableRewardError, storable, to_number

MAX_METRICS = 64
MAX_EXTRA_COLUMNS = 16
MAX_EXTRA_CHARS = 1000
MAX_NAME_CHARS = 64
MAX_MESSAGE_CHARS = 2000
MAX_TRACEBACK_CHARS = 8000


class MetricLog:
    """TRL's `log_metric`: values by name, averaged over the call."""

    def __init__(self) -> None:
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, value: float) -> None:
        try:
            number = to_number(value)
        except UnusableRewardError:
            raise TypeError(f"log_metric({name!r}, ...) takes a finite number") from None
        key = name_of(name)
        if len(self._values) < MAX_METRICS or key in self._values:
            self._values[key].append(number)

    def means(self) -> dict[str, float]:
        return {name: math.fsum(values) / len(values) for name, values in self._values.items()}


class ExtraLog:
    """TRL's `log_extra`: one value for each completion, by column."""

    def __init__(self) -> None:
        self._columns: dict[str, list[Any]] = {}

    def add(self, column: str, values: Sequence[Any]) -> None:
        key = name_of(column)
        if len(self._columns) < MAX_EXTRA_COLUMNS or key in self._columns:
            self._columns.setdefault(key, []).extend(cell_of(value) for value in values)

    def row(self, index: int) -> dict[str, Any]:
        """The columns of one completion; those that were given too few values lack it."""
        return {name: values[index] for name, values in self._columns.items() if index < len(values)}


def split_fields(fields: Mapping[Any, Any], *, without: str) -> tuple[dict[str, float], dict[str, Any]]:
    """The numbers and the texts that stand beside a reward in what was returned; other values are left out."""
    metrics: dict[str, float] = {}
    extra: dict[str, Any] = {}
    for name, value in fields.items():
        if name == without:
            continue
        if isinstance(value, str) and len(extra) < MAX_EXTRA_COLUMNS:
            extra[name_of(name)] = cell_of(value)
        elif len(metrics) < MAX_METRICS and (number := _finite(value)) is not None:
            metrics[name_of(name)] = number
    return metrics, extra


def bounded(grade: Grade) -> Grade:
    """A grade from the other side of the pipe, where reward code may have had its hands on it."""
    if not (grade.message or grade.traceback or grade.metrics or grade.extra):
        return grade
    metrics = islice(grade.metrics.items(), 2 * MAX_METRICS)
    extra = islice(grade.extra.items(), 2 * MAX_EXTRA_COLUMNS)
    return replace(
        grade,
        message=None if grade.message is None else storable(grade.message[:MAX_MESSAGE_CHARS]),
        traceback=None if grade.traceback is None else storable(grade.traceback[-MAX_TRACEBACK_CHARS:]),
        metrics={name_of(name): value for name, value in metrics if math.isfinite(value)},
        extra={name_of(name): cell_of(value) for name, value in extra},
    )


def name_of(name: object) -> str:
    return storable(str(name)[:MAX_NAME_CHARS])


def cell_of(value: Any) -> Any:
    """A value that JSON holds: numbers and booleans as they are, anything else as the beginning of its text."""
    if value is None or (isinstance(value, bool | int) and abs(value) < 2**53):
        return value
    number = _finite(value)
    return storable(str(value)[:MAX_EXTRA_CHARS]) if number is None else number


def _finite(value: Any) -> float | None:
    try:
        return to_number(value)
    except UnusableRewardError:
        return None
