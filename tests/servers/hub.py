"""A small hub on loopback: serves local folders as model repositories, as huggingface_hub asks for them.

What it answers: model info, the tree, and HEAD and GET (with Range) of files at a branch or a commit. Point
`HF_ENDPOINT` at `Hub.url`. Every repository has one branch, `main`, at one commit.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "5ca1ab1e" * 5

_API = re.compile(r"/api/models/(?P<repo>.+?)(/(?P<what>revision|tree)/(?P<revision>[^/]+)(/.*)?)?")
_RESOLVE = re.compile(r"/(?P<repo>[^/]+(/[^/]+)?)/resolve/(?P<revision>[^/]+)/(?P<file>.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Hub:
    url: str
    repositories: dict[str, Path]
    """Folders by repository id. Change it, or the files in them, at any time."""
    commit: str = COMMIT
    failing_with: HTTPStatus | None = None
    """Answer every request with this, as a hub in trouble does."""
    answering: bytes | None = None
    """Answer every request with 200 and this, as a proxy's login page does."""
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    """`METHOD /path`, in order of arrival."""


@contextmanager
def running_hub(repositories: Mapping[str, Path], *, commit: str = COMMIT) -> Iterator[Hub]:
    hub = Hub("", dict(repositories), commit)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="hub")
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _RefusedError(Exception):
    """What the Hub says in its X-Error-Code header."""

    def __init__(self, status: HTTPStatus, code: str) -> None:
        super().__init__(code)
        self.status = status
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: Hub, *args: Any) -> None:
        self.hub = hub
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Keep quiet."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        try:
            self._route(path)
        except _RefusedError as refusal:
            self._send(refusal.status, b"", {"X-Error-Code": refusal.code, "X-Error-Message": refusal.code})

    def _route(self, path: str) -> None:
        if self.hub.failing_with is not None:
            raise _RefusedError(self.hub.failing_with, "InternalError")
        if self.hub.answering is not None:
            self._send(HTTPStatus.OK, self.hub.answering, {})
        elif call := _API.fullmatch(path):
            self._send_json(self._describe(**call.groupdict()))
        elif call := _RESOLVE.fullmatch(path):
            self._send_file(self._find_file(call["repo"], call["revision"], call["file"]))
        else:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "EntryNotFound")

    def _describe(self, repo: str, what: str | None, revision: str | None) -> Any:
        folder = self._find_folder(repo, revision or "main")
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = {path.relative_to(folder).as_posix(): path for path in files}
        if what == "tree":
            return [_tree_entry(name, path) for name, path in names.items()]
        return {
            "_id": hashlib.sha256(repo.encode()).hexdigest()[:24],
            "id": repo,
            "modelId": repo,
            "sha": self.hub.commit,
            "private": False,
            "gated": repo in self.hub.gated,
            "disabled": False,
            "tags": [],
            "siblings": [{"rfilename": name} for name in names],
        }

    def _find_folder(self, repo: str, revision: str) -> Path:
        if repo not in self.hub.repositories:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "RepoNotFound")
        if revision not in {"main", self.hub.commit}:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "RevisionNotFound")
        return self.hub.repositories[repo]

    def _find_file(self, repo: str, revision: str, name: str) -> Path:
        folder = self._find_folder(repo, revision)
        if repo in self.hub.gated:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "GatedRepo")
        path = folder / name
        if not path.is_file():
            raise _RefusedError(HTTPStatus.NOT_FOUND, "EntryNotFound")
        return path

    def _send_file(self, path: Path) -> None:
        data = path.read_bytes()
        headers = {
            "X-Repo-Commit": self.hub.commit,
            "ETag": f'"{_blob_id(path)}"',
            "X-Linked-Size": str(len(data)),
            "Accept-Ranges": "bytes",
        }
        if asked := _RANGE.fullmatch(self.headers.get("Range", "")):
            start, end = int(asked[1]), min(int(asked[2] or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
            self._send(HTTPStatus.PARTIAL_CONTENT, data[start : end + 1], headers)
        else:
            self._send(HTTPStatus.OK, data, headers)

    def _send_json(self, value: Any) -> None:
        self._send(HTTPStatus.OK, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: HTTPStatus, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tree_entry(name: str, path: Path) -> dict[str, Any]:
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": _blob_id(path)}


def _blob_id(path: Path) -> str:
    """Git's id of the file's contents."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
