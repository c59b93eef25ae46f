"""All of Podium as real processes on one machine, made to be broken.

Every worker and the control plane (API, dispatchers) reach the servers through wires of their own, so that one of them
can be cut off while the others go on. The harness itself goes straight to the servers.
"""

import socket
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench._chaos import breakage
from bench._chaos.parts import Network, Part
from bench._chaos.servers import Servers
from cli.ledger import transaction
from cli.processes import Program, python_module
from core import failpoints
from core.db import api_keys
from core.ids import TenantId
from core.queue import TRAIN_QUEUE
from core.settings import CHECKOUT

TENANT = TenantId("chaos")
DISPATCHERS = 2
LEASE_TTL_S = 8.0
SUPERVISOR_POLL_S = 0.2
READY_TIMEOUT_S = 90.0
TIMES = {
    "PODIUM_LEASE_TTL_S": str(LEASE_TTL_S),
    "PODIUM_LEASE_RENEW_S": "1",
    "PODIUM_LEASE_MARGIN_S": "2.5",
    "PODIUM_DISPATCH_POLL_S": "0.5",
    "PODIUM_HINT_REPEAT_S": "7",
    "PODIUM_SUPERVISOR_POLL_S": str(SUPERVISOR_POLL_S),
    "PODIUM_STOP_GRACE_S": "3",
    "PODIUM_GC_EVERY_S": "10",
    "PODIUM_GC_MIN_AGE_S": "30",
    "PODIUM_MAX_FAILURES": "1000000",
    "PODIUM_MAX_PREEMPTIONS": "1000000",
}
"""A fraction of what they are in production, in the same order. A hint is not repeated sooner than a supervisor starts
on a busy machine, or there would be several for one job. No budget ends a job that only met many faults."""
NO_FENCING = Path(__file__).with_name("no_fencing")


@dataclass(frozen=True, slots=True)
class Worker:
    """One machine: a Celery worker, its wires, its disk."""

    number: int
    part: Part
    network: Network


class Stack:
    """Use from the main thread: children die with the thread that started them."""

    def __init__(self, folder: Path, *, workers: int, s3: bool, fencing: bool) -> None:
        self.folder = folder
        self.runs = folder / "runs"
        self.compute_log = folder / "compute.jsonl"
        self.failpoints_log = folder / "failpoints.log"
        self.servers = Servers(folder, s3=s3)
        self.control_plane = self.servers.network()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.api = Part.of(self._api())
        self.dispatchers = [Part.of(self._dispatcher(number)) for number in range(DISPATCHERS)]
        self._fencing = fencing
        self.workers = [self._worker(number) for number in range(workers)]

    @property
    def parts(self) -> list[Part]:
        return [*self.servers.parts, self.api, *self.dispatchers, *(worker.part for worker in self.workers)]

    @property
    def networks(self) -> list[Network]:
        return [self.control_plane, *(worker.network for worker in self.workers)]

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def start(self) -> str:
        """Everything up and the API ready; an API key. Raises StartFailed."""
        self._write_trainer()
        self.servers.start()
        with transaction(self.servers.database_url) as session:
            _, api_key = api_keys.create(session, tenant_id=TENANT, name="chaos")
        for part in self.parts[len(self.servers.parts) :]:
            part.start()
        self.api.child.wait_until(self._api_is_ready, timeout_s=READY_TIMEOUT_S)
        return api_key

    def tend(self) -> None:
        for part in self.parts:
            part.tend()

    def stop(self) -> None:
        """Who writes first, what is written to last."""
        parts = self.parts
        for part in parts[len(self.servers.parts) :]:
            part.child.ask_to_stop()
        for part in reversed(parts):
            part.child.stop()
        for network in self.networks:
            for proxy in network.proxies:
                proxy.close()
        self._listener.close()

    def _api_is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=2.0).is_success
        except httpx.TransportError:
            return False

    def _environment(self, network: Network, failures: str) -> dict[str, str]:
        return (
            self.servers.environment(network)
            | TIMES
            | {
                failpoints.VARIABLE: failures,
                failpoints.LOG_VARIABLE: str(self.failpoints_log),
                "PODIUM_LOG_FORMAT": "json",
                "PODIUM_REPORT_WAIT_S": "0",  # there is no grading worker to wait for
                "PYTHONUNBUFFERED": "1",
            }
        )

    def _api(self) -> Program:
        """It serves our listening socket: while it is down, clients wait instead of being refused."""
        handle = self._listener.fileno()
        options = ("--fd", str(handle), "--no-access-log", "--timeout-graceful-shutdown", "5")
        return Program(
            name="api",
            argv=python_module("uvicorn", "app.main:create_app", "--factory", *options),
            log=self.log("api"),
            env=self._environment(self.control_plane, breakage.api_failpoints()),
            folder=CHECKOUT,
            pass_fds=(handle,),
        )

    def _dispatcher(self, number: int) -> Program:
        return Program(
            name=f"dispatcher-{number}",
            argv=python_module("worker.dispatcher"),
            log=self.log(f"dispatcher-{number}"),
            env=self._environment(self.control_plane, breakage.dispatcher_failpoints()),
            folder=CHECKOUT,
        )

    def _worker(self, number: int) -> Worker:
        name, network = f"worker-{number}", self.servers.network()
        pool = ("--pool", "prefork", "--concurrency", "1", "--prefetch-multiplier", "1", "-Q", TRAIN_QUEUE)
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat", "--hostname", f"{name}@chaos")
        env = self._environment(network, breakage.worker_failpoints(number)) | {
            "PODIUM_RUNS_DIR": str(self.runs / name),
            "PODIUM_TRAINER_PYTHON": str(self._trainer),
        }
        if not self._fencing:
            env["PYTHONPATH"] = f"{NO_FENCING}:{CHECKOUT}"
        program = Program(
            name=name,
            argv=python_module("celery", "-A", "worker.main", "worker", *pool, *quiet),
            log=self.log(name),
            env=env,
            folder=CHECKOUT,
            stop_grace_s=10.0,
        )
        return Worker(number, Part.of(program), network)

    @property
    def _trainer(self) -> Path:
        return self.folder / "trainer"

    def _write_trainer(self) -> None:
        """An "interpreter" that runs our trainer, whatever module it is asked for."""
        command = f'exec "{sys.executable}" -m bench._chaos.trainer "{self.compute_log}" "$@"'
        self._trainer.write_text(f"#!/bin/sh\n{command}\n")
        self._trainer.chmod(self._trainer.stat().st_mode | stat.S_IXUSR)
