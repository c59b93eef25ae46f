"""Grades as they come from the other side of the pipe, where reward code may have had its hands on them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from worker.grading.grades import Grade, GradeOutcome
from worker.grading.logged import bounded
from worker.grading.values import MAX_REWARD

_Number = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False)]


class _Received(BaseModel):
    """A `Grade` in JSON: nothing is taken for what it is not, such as "1" for a number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    outcome: Annotated[GradeOutcome, Field(strict=False)]
    value: _Number | None = None
    metrics: dict[str, _Number] = Field(default_factory=dict)
    message: str | None = None
    traceback: str | None = None
    latency_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    timed_out: bool = False
    extra: dict[str, str | bool | int | float | None] = Field(default_factory=dict)


def read_grade(fields: object, passed_s: float) -> Grade:
    """The grade, its texts cut, its time at most `passed_s`; a user error where it is none. Never raises."""
    try:
        given: dict[str, Any] = dict(_Received.model_validate(fields))
        grade = Grade(**{**given, "latency_s": min(given["latency_s"], passed_s)})
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
