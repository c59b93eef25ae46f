"""A real Valkey for the whole test session."""

from collections.abc import Iterator

import pytest

from cli.valkey import running_valkey


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_valkey(tmp_path_factory.mktemp("valkey") / "data") as server:
        yield server.url
