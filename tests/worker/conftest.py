"""A workshop for each test that wants one; graders in real processes, closed after the test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.db.session import Sessions
from core.settings import Settings
from tests.worker.workshop import Workshop
from worker.grading.client import Grader


@pytest.fixture
def workshop(tmp_path: Path, settings: Settings, sessions: Sessions) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, settings, sessions)
    yield workshop
    workshop.close()


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Put a reward's source into a file."""

    def _write(source: str) -> Path:
        path = tmp_path / "source.py"
        path.write_text(source)
        return path

    return _write


@pytest.fixture
def grader(write: Callable[[str], Path]) -> Iterator[Callable[..., Grader]]:
    """Open a grader of a source."""
    graders = []

    def _grader(source: str, **options: Any) -> Grader:
        one = Grader(write(source), **options)
        graders.append(one)
        return one.__enter__()

    yield _grader
    for one in graders:
        one.close()
