"""Pages for people, served by the server itself: they are as old as the code that runs, and need no other network."""

import html
import inspect
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from core.errors import ServiceError

router = APIRouter(include_in_schema=False)

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} - Podium</title>
<style>body{{font:16px/1.5 system-ui;max-width:46rem;margin:2rem auto;padding:0 1rem}}code{{font-size:.95em}}
h2{{margin-bottom:0;font-size:1.1rem}}p{{margin:.2rem 0}}:target{{background:#fff3c4}}</style>
<h1>{title}</h1>
{body}
</html>"""
_INDEX = """<p><a href="/openapi.json">openapi.json</a>: every operation, with examples. Paths and shapes are OpenAI's
fine-tuning API; its clients work with <code>base_url</code> set to this server's <code>/v1</code>.</p>
<p><a href="/docs/errors">Errors</a>: what each code means, and what to do.</p>
<p><a href="/healthz">healthz</a>, <a href="/readyz">readyz</a>, <a href="/version">version</a></p>"""


@router.get("/docs")
def get_documentation() -> HTMLResponse:
    """Where everything is."""
    return HTMLResponse(_PAGE.format(title="The API", body=_INDEX))


@router.get("/docs/errors")
def get_error_documentation() -> HTMLResponse:
    """Every error that this server can answer with; an error's `docs` points to its place here."""
    entries = "\n".join(_entry(kind) for kind in sorted(_kinds(ServiceError), key=lambda kind: kind.code))
    return HTMLResponse(_PAGE.format(title="Errors", body=entries))


def _kinds(parent: type[ServiceError]) -> Iterator[type[ServiceError]]:
    """The error classes that have a code of their own."""
    if "code" in vars(parent):
        yield parent
    for child in parent.__subclasses__():
        yield from _kinds(child)


def _entry(kind: type[ServiceError]) -> str:
    meaning = inspect.cleandoc(kind.__doc__) if "__doc__" in vars(kind) and kind.__doc__ else ""
    lines = [f'<h2 id="{kind.code}"><code>{kind.code}</code> ({kind.status})</h2>']
    lines += [f"<p>{html.escape(text)}</p>" for text in (meaning, kind.default_fix) if text]
    return "\n".join(lines)
