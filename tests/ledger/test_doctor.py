"""What `podium doctor` says about the store: not that it is there, but what was proved of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import doctor
from cli.data_folder import DataFolder
from cli.doctor import Finding, Health
from core.settings import Settings, get_settings
from tests.servers.s3_gateway import Gateway, running_gateway
from tests.servers.seaweedfs import S3Server


@pytest.fixture(autouse=True)
def fresh_settings(monkeypatch: pytest.MonkeyPatch, database_url: str) -> Iterator[None]:
    monkeypatch.setenv("PODIUM_DATABASE_URL", database_url)
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()


def store_finding(folder: Path) -> Finding:
    (finding,) = (finding for finding in doctor.examine(DataFolder(folder)) if finding.subject == "store")
    return finding


def test_a_good_s3_server_is_shown_with_what_it_refused(s3_settings: Settings, tmp_path: Path):
    finding = store_finding(tmp_path)
    assert (finding.health, finding.fix) == (Health.OK, None)
    for proof in ("keeps what is written", "a second create", "a wrong checksum", "a wrong secret", " s)"):
        assert proof in finding.what


def test_a_folder_has_no_secret_to_prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PODIUM_STORE_URL", f"file://{tmp_path}/store")
    finding = store_finding(tmp_path)
    assert finding.health is Health.OK
    assert "a second create" in finding.what
    assert "wrong secret" not in finding.what


@pytest.mark.parametrize(("drops", "sin"), [({"if-none-match"}, "If-None-Match"), (set(), "wrong secret")])
def test_a_careless_s3_server_is_refused_by_name(
    s3_server: S3Server,
    s3_settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    drops: set[str],
    sin: str,
):
    with running_gateway(Gateway(s3_server, drops=frozenset(drops))) as gateway:
        monkeypatch.setenv("PODIUM_S3_ENDPOINT_URL", gateway.url)
        finding = store_finding(tmp_path)
    assert finding.health is Health.FAIL
    assert sin in finding.what
    assert finding.fix is not None
