"""Frames between a grader's client and its child: a 4-byte big-endian length, then that many bytes of JSON.

JSON only, so that no bytes of the other side are ever executed (no pickle); ASCII only, so that lone surrogates of a
completion survive; NaN and the infinities are refused both ways.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

from core.strict_json import strict_json

MAX_FRAME_BYTES = 64 * 1024 * 1024
_ANSWER_BYTES, _BYTES_PER_GRADE = 64 * 1024, 256 * 1024
"""A grade's texts are bounded where it is made: with a whole traceback and all columns it is shorter than this."""
HEADER = struct.Struct(">I")
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class ProtocolError(Exception):
    """Bytes that are not a frame, or a frame over the cap."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One frame; raises `ProtocolError` when it is over the cap or holds what JSON cannot."""
    try:
        body = _ENCODER.encode(message).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"cannot be sent as JSON: {error}") from error
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes is over the cap of {MAX_FRAME_BYTES}")
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> dict[str, Any]:
    """The object in a frame's body; raises `ProtocolError` for anything else."""
    try:
        message = strict_json(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a frame of JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"a frame holds {type(message).__name__}, not an object")
    return message


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next frame of a blocking stream; None when the other side has closed it."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    body = stream.read(body_size(header))
    return decode(body)


def body_size(header: bytes, cap_bytes: int = MAX_FRAME_BYTES) -> int:
    """The size that a header announces; raises `ProtocolError` when it is over the cap."""
    size: int = HEADER.unpack(header)[0]
    if size > cap_bytes:
        raise ProtocolError(f"a frame of {size} bytes is over the cap of {cap_bytes}")
    return size


def answer_cap(count: int) -> int:
    """How long the body of an answer with `count` grades may be."""
    return min(MAX_FRAME_BYTES, _ANSWER_BYTES + _BYTES_PER_GRADE * count)
