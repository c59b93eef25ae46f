"""Rewards for how long a completion is, and penalties for going on."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from core.builtin_rewards.parameters import Builtin, TextBuiltin


class Length(TextBuiltin):
    """1 within the bounds. Beyond them 0 (`step`), or falling to 0 at 0 and at twice the bound (`linear`)."""

    builtin: Literal["length"]
    target: int | None = Field(None, ge=1, description="The best length; instead of bounds, `linear` only.")
    min: int | None = Field(None, ge=1)
    max: int | None = Field(None, ge=1)
    unit: Literal["tokens", "chars"] = Field("tokens", description="`tokens` are those of the whole completion.")
    shape: Literal["linear", "step"] = "linear"
    example: ClassVar[Mapping[str, Any]] = {"max": 200, "unit": "tokens"}

    @model_validator(mode="after")
    def _has_bounds(self) -> Self:
        low, high = self.min, self.max
        if (self.target is None) == (low is None and high is None):
            raise ValueError("give `target`, or `min` and `max` or one of them")
        if low is not None and high is not None and low > high:
            raise ValueError("`min` must be at most `max`")
        if self.target is not None and self.shape == "step":
            raise ValueError("`target` needs the shape `linear`")
        if self.after is not None and self.unit == "tokens":
            raise ValueError("`after` needs the unit `chars`")
        return self


class Overlong(Builtin):
    """0 up to `max - buffer` tokens, then falling to -1 at `max` and beyond (DAPO, equation 13; as in TRL)."""

    builtin: Literal["overlong"]
    max: int = Field(ge=1, description="Tokens; usually max_completion_length.")
    buffer: int = Field(ge=0, description="Tokens over which the penalty grows.")
    example: ClassVar[Mapping[str, Any]] = {"max": 1024, "buffer": 128}

    @property
    def best(self) -> float:
        return 0.0

    @model_validator(mode="after")
    def _buffer_fits(self) -> Self:
        if self.buffer > self.max:
            raise ValueError("`buffer` must be at most `max`")
        return self


class Repetition(Builtin):
    """`max_penalty` times the share of repeated token n-grams (arXiv:2502.03373, appendix C.2; as in TRL)."""

    builtin: Literal["repetition"]
    ngram: int = Field(3, ge=1, le=64)
    max_penalty: float = Field(-1.0, le=0, ge=-1000)
    example: ClassVar[Mapping[str, Any]] = {"ngram": 3, "max_penalty": -1.0}

    @property
    def best(self) -> float:
        return 0.0
