"""Bytes out of the store over HTTP: Range, HEAD, strong ETag and 304 (RFC 9110), or a redirect to a presigned URL."""

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from app.errors import RangeNotSatisfiable, error_response, error_responses
from core.storage.store import OCTETS, ObjectStore

PRESIGN_EXPIRES_S = 300
_RANGE = re.compile(r"bytes=(?P<first>\d{0,18})-(?P<last>\d{0,18})", re.IGNORECASE)
DOWNLOAD_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The whole file.", "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}}},
    206: {"description": "The range that was asked for."},
    304: {"description": "The client has this content already."},
    307: {"description": "The file is at this presigned URL for some minutes."},
    **error_responses(404, 416),
}
"""`responses=` of an operation that answers with `download`."""


OpenRange = Callable[[int, int], Iterator[bytes]]
"""Bytes `start` to before `end`, in pieces."""


@dataclass(frozen=True, slots=True)
class Download:
    """An object that its owner asked for. The caller has checked that it is theirs."""

    key: str
    filename: str
    size_bytes: int
    sha256: str
    """Hex; the ETag, so that a resumed download can never mix two contents."""
    content_type: str = OCTETS


@dataclass(frozen=True, slots=True)
class Content:
    """What a client downloads, wherever its bytes come from."""

    filename: str
    size_bytes: int
    identity: str
    """Hex; equal only for equal bytes. The ETag."""
    content_type: str
    open_range: OpenRange


def download(request: Request, store: ObjectStore, what: Download) -> Response:
    """Answer GET or HEAD. Several ranges in one request are answered with the whole, as RFC 9110 14.2 allows."""
    content = Content(
        what.filename,
        what.size_bytes,
        what.sha256,
        what.content_type,
        lambda start, end: store.open(what.key, start=start, end=end),
    )
    digest = base64.b64encode(bytes.fromhex(what.sha256)).decode()
    headers = {**_headers(content), "Repr-Digest": f"sha-256=:{digest}:"}  # RFC 9530
    return _without_body(request, content, headers) or _redirect(store, what) or _stream(request, content, headers)


def download_assembled(request: Request, content: Content) -> Response:
    """As `download`, for bytes that no single object holds; what identifies them is not their digest."""
    headers = _headers(content)
    return _without_body(request, content, headers) or _stream(request, content, headers)


def content_disposition(filename: str) -> str:
    """RFC 6266: the name in ASCII for old clients, and in UTF-8 for the others."""
    plain = re.sub(r'[^ -~]|["\\%/]', "_", filename)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"


def _without_body(request: Request, what: Content, headers: dict[str, str]) -> Response | None:
    """304 or the answer to HEAD, if that is all there is to say."""
    if _names(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    if request.method == "HEAD":
        return Response(headers={**headers, "Content-Length": str(what.size_bytes)}, media_type=what.content_type)
    return None


def _redirect(store: ObjectStore, what: Download) -> Response | None:
    url = store.presign(what.key, filename=what.filename, content_type=what.content_type, expires_s=PRESIGN_EXPIRES_S)
    return None if url is None else RedirectResponse(url, 307, headers={"Cache-Control": "no-store"})


def _stream(request: Request, what: Content, headers: dict[str, str]) -> Response:
    window = _window(request, what.size_bytes, headers["ETag"])
    if window is None:
        pieces = what.open_range(0, what.size_bytes)
        headers["Content-Length"] = str(what.size_bytes)
        return StreamingResponse(pieces, 200, headers, what.content_type)
    start, end = window
    if start >= end:
        return error_response(
            RangeNotSatisfiable(f"The file has {what.size_bytes} bytes."),
            {"Content-Range": f"bytes */{what.size_bytes}"},
        )
    headers["Content-Range"] = f"bytes {start}-{end - 1}/{what.size_bytes}"
    headers["Content-Length"] = str(end - start)
    return StreamingResponse(what.open_range(start, end), 206, headers, what.content_type)


def _headers(what: Content) -> dict[str, str]:
    return {
        "ETag": f'"{what.identity}"',
        "Accept-Ranges": "bytes",
        "Cache-Control": "private, no-cache",
        "Content-Disposition": content_disposition(what.filename),
        "X-Content-Type-Options": "nosniff",
    }


def _names(header: str | None, etag: str) -> bool:
    """Whether an If-None-Match names this ETag; weak comparison, as RFC 9110 13.1.2 wants."""
    if header is None:
        return False
    return header.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


def _window(request: Request, size_bytes: int, etag: str) -> tuple[int, int] | None:
    """First byte and one past the last; None for the whole, start >= end for a range that cannot be."""
    asked = _RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    if asked is None or request.headers.get("if-range", etag) != etag:
        return None
    first, last = asked["first"], asked["last"]
    if first:
        end = min(int(last) + 1, size_bytes) if last else size_bytes
        return None if last and int(last) < int(first) else (int(first), end)
    if last:
        return max(0, size_bytes - int(last)), size_bytes if int(last) else 0
    return None
