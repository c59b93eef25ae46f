"""What Postgres can keep. Model output and tracebacks hold what it refuses: NUL, lone surrogates, NaN.

Those become U+FFFD and null at this border, so that one odd token never costs the transaction around it. What
clients send is refused with an error long before; only facts that a run reports come here unchecked.
"""

import json
import math
import re
from typing import Any

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SUSPECT = re.compile(r"\\u0000|\\ud[89a-f]|NaN|Infinity")


def storable_text(text: str) -> str:
    return _UNSTORABLE.sub("\ufffd", text)


def dump_json(value: Any) -> str:
    """JSON for a jsonb column; the engine's serializer."""
    text = json.dumps(value)
    return json.dumps(_storable(value), allow_nan=False) if _SUSPECT.search(text) else text


def _storable(value: Any) -> Any:
    match value:
        case str():
            return storable_text(value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {storable_text(str(key)): _storable(item) for key, item in value.items()}
        case list() | tuple():
            return [_storable(item) for item in value]
        case _:
            return value
