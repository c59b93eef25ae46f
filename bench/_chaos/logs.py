"""The logs of a run, as evidence: which places broke, and which process was whose supervisor."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Broken:
    """One line of PODIUM_FAILPOINTS_LOG."""

    at: float
    pid: int
    place: str
    action: str


class FailpointLog:
    """Read on, again and again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.seen: list[Broken] = []

    def read(self) -> list[Broken]:
        """What is new."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            lines = [line for line in file if line.endswith(b"\n")]
        self._offset += sum(len(line) for line in lines)
        new = [_parse(line.decode()) for line in lines]
        self.seen += new
        return new


def supervisors(logs: Path) -> dict[int, str]:
    """The job of each supervisor, by process id, as the workers logged it."""
    return {line["pid"]: line["job_id"] for line in _json_lines(logs) if line.get("event") == "supervisor_started"}


def _json_lines(logs: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(logs.glob("worker-*.log*")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("{"):
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # a line that a kill cut short


def _parse(line: str) -> Broken:
    at, pid, place, action = line.split()
    return Broken(float(at), int(pid), place, action)
