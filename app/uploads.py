"""Multipart uploads: one file to a temporary path, its digest on the way, the other fields as text.

FastAPI would read a whole form before it asks who sends it, and keep every field in memory. This reads after the key
was checked, holds one piece at a time, and stops at the first byte over the cap, with or without a Content-Length.
"""

import hashlib
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from anyio import to_thread
from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.bodies import capped_receive, declared_length, fault_of_text, too_large
from app.errors import UnsupportedMediaType
from app.validation import unknown_field
from core.errors import InvalidRequest, Problem, Unavailable

FORM_OVERHEAD_BYTES = 64 * 1024
"""What boundaries, part headers and the small fields may take beside the file."""
MAX_FIELD_BYTES = 8 * 1024
MAX_PARTS = 32
MAX_FILENAME_LENGTH = 200
FILE = "file"
_FORM_TYPE = b"multipart/form-data"
_PIECE_BYTES = 1024 * 1024
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffd]")

Sink = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Upload:
    path: Path
    """Exists until the request is answered."""
    filename: str
    """Safe to store, to log and to send back in a header."""
    size_bytes: int
    sha256: str
    fields: Mapping[str, str]

    @property
    def identity(self) -> str:
        """Equal for equal uploads, however they were cut into parts: for `Idempotency.about`."""
        return repr((self.sha256, self.filename, sorted(self.fields.items())))


@asynccontextmanager
async def receive_upload(request: Request, *, max_bytes: int, fields: Sequence[str]) -> AsyncIterator[Upload]:
    """The part `file` of a form, and those of `fields` that came with it.

    Raises UnsupportedMediaType, TooLarge, InvalidRequest with every problem of the form, or Unavailable (no room).
    """
    boundary = _boundary(request)
    if declared_length(request) > max_bytes + FORM_OVERHEAD_BYTES:
        raise too_large(FILE, max_bytes)
    with ExitStack() as stack:
        with _translated():
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix="podium-upload-"))
            form = _Form(file, fields, max_bytes)
            parts = _Parts(boundary, form.open)
            async for piece in _pieces(request, max_bytes):
                await to_thread.run_sync(parts.feed, piece)
            if not parts.is_complete:
                raise _invalid("ends before the form's last boundary", "incomplete_form", "Send it again, whole.")
            upload = form.finish()
        yield upload


def is_form(request: Request) -> bool:
    return parse_options_header(request.headers.get("content-type"))[0] == _FORM_TYPE


def form_schema(file: str, fields: Mapping[str, Mapping[str, Any]], *, required: Sequence[str] = ()) -> dict[str, Any]:
    """The JSON Schema of such a form: `file` says what the file is."""
    properties = {FILE: {"type": "string", "format": "binary", "description": file}, **fields}
    return {"type": "object", "required": [FILE, *required], "properties": properties, "additionalProperties": False}


def safe_filename(raw: str) -> str:
    """The last part of a path, without what terminals, headers or file systems could take for something else."""
    name = _UNPRINTABLE.sub("", raw.replace("\\", "/").rpartition("/")[2]).strip(" .")
    if len(name) > MAX_FILENAME_LENGTH:
        suffix = Path(name).suffix[-16:]
        name = name[: MAX_FILENAME_LENGTH - len(suffix)] + suffix
    return name or "upload"


class _Form:
    """What came: the file on disk, the fields in memory, and everything that is wrong with them."""

    def __init__(self, file: IO[bytes], fields: Sequence[str], max_bytes: int) -> None:
        self._file, self._known, self._max_bytes = file, (FILE, *fields), max_bytes
        self._digest = hashlib.sha256()
        self._size_bytes = 0
        self._filename: str | None = None
        self._fields: dict[str, bytes] = {}
        self._problems: list[Problem] = []

    def open(self, name: str, filename: str | None) -> Sink:
        """Where the bytes of this part go."""
        if name not in self._known:
            return self._refuse(unknown_field((name[:64],), self._known))
        if name in self._fields or (name == FILE and self._filename is not None):
            return self._refuse(Problem(name, "comes twice", "duplicate_field", "Send it once."))
        if (name == FILE) is (filename is None):
            kind = "a file, with a filename" if name == FILE else "text, not a file"
            return self._refuse(Problem(name, f"must be {kind}", "invalid_type", f"Send it as {kind}."))
        if filename is not None:
            self._filename = filename
            return self._write
        self._fields[name] = b""
        return partial(self._append, name)

    def finish(self) -> Upload:
        texts = {name: data.decode(errors="replace") for name, data in self._fields.items()}
        self._problems += [Problem(name, *fault) for name, text in texts.items() if (fault := fault_of_text(text))]
        if self._filename is None and not any(problem.field == FILE for problem in self._problems):
            fix = f"Send it as a file part: curl -F {FILE}=@data.jsonl"
            self._problems.append(Problem(FILE, "is required", "missing_field", fix))
        if self._problems:
            raise InvalidRequest.of(self._problems)
        self._file.flush()
        filename = safe_filename(self._filename or "")
        return Upload(Path(self._file.name), filename, self._size_bytes, self._digest.hexdigest(), texts)

    def _refuse(self, problem: Problem) -> Sink:
        self._problems.append(problem)
        return _drop

    def _write(self, data: bytes) -> None:
        self._size_bytes += len(data)
        if self._size_bytes > self._max_bytes:
            raise too_large(FILE, self._max_bytes)
        self._digest.update(data)
        self._file.write(data)

    def _append(self, name: str, data: bytes) -> None:
        self._fields[name] += data
        if len(self._fields[name]) > MAX_FIELD_BYTES:
            message = f"is longer than {MAX_FIELD_BYTES} bytes"
            raise InvalidRequest.of([Problem(name, message, "invalid_value", "Send a shorter text.")])


class _Parts:
    """Cuts a multipart body (RFC 7578) into parts and sends the bytes of each where `open` says."""

    def __init__(self, boundary: bytes, open_part: Callable[[str, str | None], Sink]) -> None:
        self._open = open_part
        self._count = 0
        self._header = self._value = self._disposition = b""
        self._sink: Sink = _drop
        self.is_complete = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_end": self._on_end,
            },
        )

    def feed(self, data: bytes) -> None:
        self._parser.write(data)

    def _on_part_begin(self) -> None:
        self._count += 1
        if self._count > MAX_PARTS:
            raise _invalid(f"has more than {MAX_PARTS} parts", "too_many_parts", "Send one file and its fields.")
        self._header = self._value = self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        self._header = self._value = b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        texts = {key: value.decode(errors="replace") for key, value in options.items()}
        self._sink = self._open(texts.get(b"name", ""), texts.get(b"filename"))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._sink(data[start:end])

    def _on_end(self) -> None:
        self.is_complete = True


def _drop(_: bytes) -> None:
    """The bytes of a part that was refused; the form is still read to its end, for all of its problems."""


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != _FORM_TYPE:
        what = kind.decode("latin-1")[:100] or "no content type"
        fix = f"Send multipart/form-data: curl -F {FILE}=@data.jsonl"
        raise UnsupportedMediaType(f"The body is sent as {what}, not as a form.", fix=fix)
    if b"boundary" not in options:
        raise _invalid("is a form without a boundary", "invalid_form", "Let the HTTP client make the Content-Type.")
    return options[b"boundary"]


async def _pieces(request: Request, max_bytes: int) -> AsyncIterator[bytes]:
    """The body in pieces worth a trip to another thread."""
    receive = capped_receive(request.receive, max_bytes + FORM_OVERHEAD_BYTES, too_large(FILE, max_bytes))
    piece = bytearray()
    async for chunk in Request(request.scope, receive).stream():
        piece += chunk
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    yield bytes(piece)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except FormParserError as error:
        raise _invalid(f"is not a form: {error}", "invalid_form", "Send multipart/form-data (RFC 7578).") from None
    except OSError as error:
        raise Unavailable("The server has no room for the file right now.") from error


def _invalid(message: str, code: str, fix: str) -> InvalidRequest:
    return InvalidRequest.of([Problem("body", message, code, fix)])
