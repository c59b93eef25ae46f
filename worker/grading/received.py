"""Grades as they come from the other side of the pipe, where reward code may have had its hands on them."""

from typing import Annotated, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from worker.grading.grades import Grade, GradeOutcome
from worker.grading.logged import bounded
from worker.grading.values import MAX_REWARD

_Number = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False)]


@with_config(ConfigDict(extra="forbid", strict=True))
class _Received(TypedDict, total=False):
    """A `Grade` in JSON: nothing is taken for what it is not, such as "1" for a number."""

    outcome: Required[Annotated[GradeOutcome, Field(strict=False)]]
    value: _Number | None
    metrics: dict[str, _Number]
    message: str | None
    traceback: str | None
    latency_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    timed_out: bool
    extra: dict[str, str | bool | int | float | None]


_ONE = TypeAdapter(_Received)
_ALL = TypeAdapter(list[_Received])


def read_grades(answer: list[object], passed_s: float) -> list[Grade]:
    """As `read_grade`, each for itself; in one go where all are what they must be."""
    try:
        return [_made(given, passed_s) for given in _ALL.validate_python(answer)]
    except ValidationError:
        return [read_grade(fields, passed_s) for fields in answer]


def read_grade(fields: object, passed_s: float) -> Grade:
    """The grade, its texts cut, its time at most `passed_s`; a user error where it is none. Never raises."""
    try:
        given = _ONE.validate_python(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][:1]))
        return _refused(f"{where}: {first['msg']}" if where else first["msg"], passed_s)
    return _made(given, passed_s)


def _made(given: _Received, passed_s: float) -> Grade:
    given["latency_s"] = min(given.get("latency_s", 0.0), passed_s)
    try:
        return bounded(Grade(**given))
    except ValueError as error:  # an outcome and a value that do not go together
        return _refused(str(error), passed_s)


def _refused(what: str, passed_s: float) -> Grade:
    message = f"the reward's process sent what is not a grade: {what}"
    return bounded(Grade(GradeOutcome.USER_ERROR, message=message, latency_s=passed_s))
