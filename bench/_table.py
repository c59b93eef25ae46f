"""How a bench prints: a table for people, or with --json the same rows for scripts; always with date and machine."""

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any


def machine() -> str:
    """Size of this machine: figures mean nothing without it."""
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {gib:.0f} GiB, Python {platform.python_version()}"


def show(title: str, rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    """Print the rows, which all have the same keys."""
    if as_json:
        print(json.dumps({"bench": title, "date": today(), "machine": machine(), "rows": rows}, indent=1))
        return
    print(f"{title} ({today()}, {machine()})\n")
    header = list(rows[0])
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(_cell(row[name]) for name in header) + " |")


def today() -> str:
    return datetime.now(UTC).date().isoformat()


def _cell(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
