"""One reward of a job, as clients write it: an uploaded one by its id, or a built-in one by its name."""

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, cast

from pydantic import (
    Discriminator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    field_serializer,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from core.builtin_rewards.catalogue import BUILTINS, AnyBuiltin, unknown_builtin
from core.builtin_rewards.outside import Http
from core.builtin_rewards.parameters import Builtin
from core.ids import RewardId
from core.reward_source import RewardForm
from core.spec import Frozen, Gate, RewardName

HIDDEN = "***"

Term = TypeVar("Term", bound="TermFields")


class TermFields(Frozen):
    name: RewardName | None = Field(None, description="Under which metrics report it; unset: the name of the reward.")
    weight: float = Field(1.0, ge=-1000, le=1000, strict=True)
    gate: Gate | None = Field(
        None, description="Count this one only where another one, which stands before it, reaches a value."
    )


class UploadedTerm(TermFields):
    """One uploaded reward function and its share of the sum."""

    reward: RewardId = Field(description="Id of an uploaded reward.")
    version: int | None = Field(
        None, ge=1, lt=2**31, strict=True, description="Unset: the newest one, which the job then keeps."
    )
    form: RewardForm | None = Field(None, description="How it is called, where its parameters' names mislead.")


class BuiltinTerm(TermFields):
    """One built-in reward: its parameters stand beside its share of the sum."""

    @property
    def parameters(self) -> AnyBuiltin:
        model = BUILTINS[self.builtin_name]
        values = {name: getattr(self, name) for name in model.model_fields}
        return model.model_construct(**values)  # type: ignore[return-value] # they were checked as part of this

    @property
    def builtin_name(self) -> str:
        return str(vars(self)["builtin"])


class HttpTerm(BuiltinTerm, Http):
    """Shown again without what is secret."""

    @field_serializer("secret")
    def _hide_secret(self, secret: str | None) -> str | None:
        return None if secret is None else HIDDEN

    @field_serializer("headers")
    def _hide_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        return dict.fromkeys(headers, HIDDEN)


def _term(model: type[Builtin]) -> type[BuiltinTerm]:
    if model is Http:
        return HttpTerm
    bases: Any = (BuiltinTerm, model)
    made = create_model(f"{model.__name__}Term", __base__=bases, __doc__=model.__doc__)
    return cast("type[BuiltinTerm]", made)


_TERMS = {name: _term(model) for name, model in BUILTINS.items()}


def _parse(value: Any, _: ValidatorFunctionWrapHandler) -> UploadedTerm | BuiltinTerm:
    """In the form that it is in: a union would report its mistakes once for each form."""
    if isinstance(value, TermFields):
        return value  # type: ignore[return-value] # made by this function, or by a test
    if not isinstance(value, Mapping) or "builtin" not in value:
        return _checked(UploadedTerm, value)
    name = value["builtin"]
    if not isinstance(name, str) or name not in _TERMS:
        problem = unknown_builtin(name, field="builtin")
        raise _error(value, "builtin", problem.code, problem.message, problem.fix)
    return _checked(_TERMS[name], value)


def _checked(model: type[Term], value: Any) -> Term:
    known = [field.alias or name for name, field in model.model_fields.items()]
    unknown = [key for key in value if key not in known] if isinstance(value, Mapping) else []
    if unknown:
        raise _error(value, unknown[0], "unknown_field", "is not known here", _nearest(unknown[0], known))
    return model.model_validate(value)


def _error(value: Mapping[str, Any], key: str, code: str, message: str, fix: str | None) -> ValidationError:
    kind = PydanticCustomError(code, "{message}", {"message": message, "fix": fix})
    return ValidationError.from_exception_data("reward", [InitErrorDetails(type=kind, loc=(key,), input=value[key])])


def _nearest(name: object, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(name)[:64], known, n=1)
    return f"Did you mean `{near[0]}`?" if near else f"Remove it; what is known here: {', '.join(known)}."


if TYPE_CHECKING:
    AnyTerm = UploadedTerm | BuiltinTerm
else:
    _Flat = Annotated[Union[tuple(_TERMS.values())], Discriminator("builtin")]  # noqa: UP007 - made of a list
    AnyTerm = Annotated[UploadedTerm | _Flat, WrapValidator(_parse)]
