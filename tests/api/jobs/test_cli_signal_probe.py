"""`podium signal-probe` against a real server: what it prints, and what becomes of the probe when it is interrupted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from core.db import leases
from core.ids import JobId
from tests.polling import wait_until
from tests.servers.api import running_api
from tests.signal_reports import ALWAYS, MIXED, make_report
from worker.publisher import publish_report

PODIUM = Path(sys.executable).with_name("podium")


@pytest.fixture
def start(app, client, body, tmp_path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command on the good job; it is ended with the test."""
    (tmp_path / "job.json").write_text(json.dumps(body))
    with running_api(app) as url, ExitStack() as processes:

        def _start(*options: str) -> subprocess.Popen[str]:
            api_key = client.headers["Authorization"].removeprefix("Bearer ")
            process = subprocess.Popen(
                [PODIUM, "signal-probe", tmp_path / "job.json", "--url", url, "--api-key", api_key, *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=dict(os.environ),
            )
            processes.enter_context(process)
            processes.callback(process.kill)
            return process

        yield _start


def new_probe(client) -> str:
    def find() -> str | None:
        found = client.get("/v1/signal_probes").json()["data"]
        return found[0]["id"] if found else None

    return wait_until(find, what="a probe")


def test_it_waits_for_the_report_and_shows_it(start, client, sessions):
    process = start("--prompts", "2", "--samples", "4")
    probe_id = new_probe(client)
    with sessions.begin() as session:
        lease = leases.claim(session, JobId(probe_id), owner="w", ttl_s=60, max_failures=3)
    assert lease is not None
    publish_report(sessions, lease, make_report(ALWAYS, MIXED))
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert f"{probe_id}: 2 prompts x 4 completions." in output
    assert "1 of 2 groups of 4 would teach nothing" in output
    assert "pass rate      prompts" in output


def test_interrupted_it_cancels_the_probe(start, client):
    process = start()
    probe_id = new_probe(client)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(probe_id), "it waits now"
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)
    assert process.returncode == 130
    assert client.get(f"/v1/signal_probes/{probe_id}").json()["status"] == "cancelled"


def test_a_probe_that_did_not_succeed_is_an_error(start, client):
    process = start("--json")
    client.post(f"/v1/signal_probes/{new_probe(client)}/cancel")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert "The probe was cancelled." in errors
