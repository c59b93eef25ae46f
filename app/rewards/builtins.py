"""`/v1/rewards/builtins`: the built-in rewards that jobs may name, with what each takes."""

from typing import Any, Literal

from pydantic import BaseModel

from app.auth import CallerDep
from app.routing import resource_router
from core.builtin_rewards.catalogue import BUILTINS
from core.builtin_rewards.parameters import Builtin

router = resource_router("/v1/rewards/builtins", tag="rewards")


class BuiltinObject(BaseModel):
    object: Literal["builtin_reward"] = "builtin_reward"
    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON Schema; they stand beside `builtin`, `weight`, `name` and `gate` in a job's rewards."""
    example: dict[str, Any]
    """As it is written in a job's rewards."""

    @classmethod
    def of(cls, name: str, model: type[Builtin]) -> "BuiltinObject":
        description = " ".join((model.__doc__ or "").split())
        example = {"builtin": name, **model.example}
        return cls(name=name, description=description, parameters=model.model_json_schema(), example=example)


class BuiltinList(BaseModel):
    object: Literal["list"] = "list"
    data: list[BuiltinObject]


@router.get("", summary="List builtin rewards")
def list_builtin_rewards(_caller: CallerDep) -> BuiltinList:
    """What a job's `rewards` may name without an upload: `{"builtin": "exact_match", "column": "answer"}`."""
    return BuiltinList(data=[BuiltinObject.of(name, model) for name, model in BUILTINS.items()])
