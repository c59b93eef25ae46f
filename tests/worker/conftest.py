"""A workshop for each test that wants one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from core.db.session import Sessions
from core.settings import Settings
from tests.worker.workshop import Workshop


@pytest.fixture
def workshop(tmp_path: Path, settings: Settings, sessions: Sessions) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path, settings, sessions)
    yield workshop
    workshop.close()
