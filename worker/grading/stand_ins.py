"""What rewards of other ecosystems import for their types and decorators, without the libraries themselves.

`reward_kit` and `eval_protocol` (Fireworks) name the messages and the result of a reward; `osmosis_ai` marks one.
Nothing here computes: the decorators hand the function back as it is. `core.reward_imports.STAND_INS` says which
names there are.
"""

import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from core.reward_imports import STAND_IN_MODULES, STAND_INS


class _Fields(dict[str, Any]):
    """Read as `x.name` and as `x["name"]`: rewards in the wild do both."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Message(_Fields):
    """A chat message: OpenAI's dictionary, and reward-kit's object."""

    def __init__(self, role: str, content: str | None = None, **more: Any) -> None:
        super().__init__(role=role, content=content, **more)


class MetricResult(_Fields):
    def __init__(self, score: float, reason: str | None = None, *, is_score_valid: bool = True, **more: Any) -> None:
        super().__init__(score=score, reason=reason, is_score_valid=is_score_valid, **more)


class EvaluateResult(_Fields):
    def __init__(
        self,
        score: float,
        reason: str | None = None,
        metrics: Mapping[str, MetricResult] | None = None,
        *,
        is_score_valid: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(score=score, reason=reason, metrics=metrics or {}, is_score_valid=is_score_valid, **more)


def mark(function: Callable[..., Any] | None = None, **_settings: Any) -> Callable[..., Any]:
    """`@reward_function`, `@reward_function(id=...)` and `@osmosis_reward`."""
    if function is not None:
        return function
    return lambda decorated: decorated


_OFFERED = {
    "EvaluateResult": EvaluateResult,
    "Message": Message,
    "MetricResult": MetricResult,
    "osmosis_reward": mark,
    "reward_function": mark,
}


def install() -> None:
    """Make the stand-ins importable in this process; a library that is really there is hidden."""
    for library, names in STAND_INS.items():
        offered = {name: _OFFERED[name] for name in names}
        for name in (library, *(f"{library}.{part}" for part in STAND_IN_MODULES)):
            module = types.ModuleType(name, "A stand-in of Podium.")
            vars(module).update(offered)
            sys.modules[name] = module
