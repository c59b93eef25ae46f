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


_RECEIVED = TypeAdapter(_Received)


def read_grade(fields: object, passed_s: float) -> Grade:
    """The grade, its texts cut, its time at most `passed_s`; a user error where it is none. Never raises."""
    try:
        given = _RECEIVED.validate_python(fields)
        given["latency_s"] = min(given.get("latency_s", 0.0), passed_s)
        grade = Grade(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"][:1]))
        return _refused(f"{where}: {first['msg']}" if where else first["msg"], passed_s)
    except ValueError as error:
        return _refused(str(error), passed_s)
    return bounded(grade)


def _refused(what: str, passed_s: float) -> Grade:
    message = f"the reward's process sent what is not a grade: {what}"
    return bounded(Grade(GradeOutcome.USER_ERROR, message=message, latency_s=passed_s))
