"""Fields of numbers take numbers. Left alone, pydantic reads `true` as 1 and `"8"` as 8."""

from collections.abc import Iterator
from types import UnionType
from typing import Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError


class ExactNumbers(BaseModel):
    """A base for models; not for those that a discriminator chooses, whose fields no validator may come before."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_a_number(cls, value: object, info: ValidationInfo) -> object:
        """Whole floats pass for integers, and the words of a `Literal` beside the number pass as they are."""
        assert info.field_name is not None
        kinds = set(_members(cls.model_fields[info.field_name].annotation))
        if not isinstance(value, bool | str) or not kinds & {int, float} or type(value) in kinds or value in kinds:
            return value
        raise PydanticKnownError("float_type" if float in kinds else "int_type")


def _members(annotation: object) -> Iterator[object]:
    """The types of a union and the values of its literals."""
    if get_origin(annotation) in {Union, UnionType}:
        for member in get_args(annotation):
            yield from _members(member)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        yield annotation
