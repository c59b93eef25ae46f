"""JSON as RFC 8259 has it: Python's own parser also takes NaN and Infinity, which nothing behind it can keep."""

import json
import math
from typing import Any, Never


def strict_json(text: str | bytes) -> Any:
    """The value of `text`; raises ValueError, also for NaN and Infinity, and RecursionError for deep nesting."""
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _DECODER.decode(text)


def json_number(value: float) -> float | None:
    """A number as JSON can hold it: null for NaN and the infinities."""
    return value if math.isfinite(value) else None


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
"""Made once: small texts take less time than a decoder does."""
