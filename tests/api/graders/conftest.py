"""The real app with a real grading worker behind it: one for all tests, on the ledger and the broker of them all."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import SecretStr

from core.settings import Settings
from tests.servers.grading_worker import running_grading_worker


@pytest.fixture(scope="module")
def store_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"file://{tmp_path_factory.mktemp('store')}"


@pytest.fixture(scope="module")
def worker_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("grading") / "worker.log"


@pytest.fixture(scope="module")
def grading_worker(ledger_url: str, valkey_url: str, store_url: str, worker_log: Path) -> Iterator[psutil.Popen]:
    settings = Settings(_env_file=None, database_url=ledger_url, broker_url=SecretStr(valkey_url), store_url=store_url)
    with running_grading_worker(settings, worker_log) as process:
        yield process


@pytest.fixture
def settings(settings: Settings, store_url: str) -> Settings:
    """Patient: a busy machine is no failure here."""
    return settings.model_copy(update={"store_url": store_url, "grader_wait_s": 30.0, "report_wait_s": 30.0})
