"""An exporter for each test that wants one."""

from pathlib import Path

import pytest

from tests.worker.exports.exporting import Exporting
from tests.worker.workshop import Workshop


@pytest.fixture
def exporting(workshop: Workshop, tmp_path: Path) -> Exporting:
    return Exporting(workshop, tmp_path)
