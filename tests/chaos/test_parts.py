"""The tools of the chaos bench: its plan, its places, its wires, its eye for what was left behind."""

import re
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench._chaos import breakage
from bench._chaos.plan import Action, FaultKind, Strike, Submit, make_plan
from bench._chaos.processes import left_behind
from bench._chaos.tcp_proxy import running_proxy
from bench._chaos.weights import as_metric, weights
from core import failpoints
from core.settings import CHECKOUT
from tests.polling import wait_until


def plan(seed: int, *, jobs: int = 20, faults: int = 30) -> list[Action]:
    return make_plan(seed, jobs=jobs, faults=faults, kinds=tuple(FaultKind), mean_gap_s=1.0)


def test_a_plan_is_its_seeds_alone():
    assert plan(1) == plan(1)
    assert plan(1) != plan(2)


def test_a_plan_has_every_job_once_every_kind_and_work_around_every_fault():
    actions = plan(5)
    submits = [action for action in actions if isinstance(action, Submit)]
    strikes = [action for action in actions if isinstance(action, Strike)]
    assert sorted(submit.number for submit in submits) == list(range(20))
    assert {strike.kind for strike in strikes} == set(FaultKind)
    assert len(strikes) == 30
    assert isinstance(actions[0], Submit)
    assert isinstance(actions[-1], Submit)


def test_every_place_that_the_product_names_is_broken_somewhere():
    """A new failpoint wants a place in `bench._chaos.breakage`; grading worker and exporter have no part in chaos."""
    sources = [path for room in ("app", "core", "worker") for path in (CHECKOUT / room).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r'failpoint\("([a-z_.]+)"\)', path.read_text())}
    named = {name for name in named if not name.startswith(("grading.", "export."))}
    texts = (breakage.api_failpoints(), breakage.dispatcher_failpoints(), breakage.worker_failpoints(0))
    assert {name for text in texts for name in failpoints.parse(text)} == named


def test_every_temper_of_a_worker_is_spelled_right():
    actions = {
        fault.action
        for number in range(len(breakage.TEMPERS))
        for fault in failpoints.parse(breakage.worker_failpoints(number)).values()
    }
    assert actions == set(breakage.TEMPERS)


def test_each_step_of_each_job_has_weights_of_its_own():
    seen = [weights(seed, step) for seed in range(3) for step in range(5)]
    assert len(set(seen)) == len(seen)
    assert all(as_metric(one) != as_metric(other) for one, other in pairwise(seen))
    assert as_metric(seen[0]) == int(as_metric(seen[0])), "a float holds it exactly"


def test_a_process_of_a_run_that_is_still_there_is_found(tmp_path: Path):
    command = [sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path / "worker-0/job/a0001")]
    with subprocess.Popen(command) as process:
        wait_until(lambda: left_behind(tmp_path, patience_s=0.0), what="it is seen")
        (found,) = left_behind(tmp_path, patience_s=0.0)
        assert found.startswith(f"{process.pid} ")
        process.kill()
    assert left_behind(tmp_path, patience_s=0.0) == []


@pytest.fixture
def echo():
    """A server that hands back what it gets, on one connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener, running_proxy(listener.getsockname()[1]) as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        server, _ = listener.accept()
        with client, server:
            yield proxy, client, server


def test_a_silent_wire_holds_back_and_loses_nothing(echo):
    proxy, client, server = echo
    server.settimeout(0.2)
    proxy.fall_silent()
    client.sendall(b"held")
    with pytest.raises(TimeoutError):
        server.recv(10)
    proxy.speak()
    server.settimeout(10)
    assert server.recv(10) == b"held"


def test_a_cut_wire_ends_both_sides(echo):
    proxy, client, server = echo
    client.sendall(b"x")
    assert server.recv(1) == b"x"
    proxy.cut()
    assert (client.recv(1), server.recv(1)) == (b"", b"")


def test_a_server_that_is_down_hangs_up_on_its_clients():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with running_proxy(port) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        assert client.recv(1) == b""
