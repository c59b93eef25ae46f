"""How long a person waits: `podium up` until the API is ready, and a submitted job until its trainer's first line.

    podium bench startup [--rounds N] [--json]

The first round starts on an empty folder (cold: a database is made), the others on the same folder again (warm).
"""

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench._table import show
from cli.client import Client
from cli.data_folder import Connection
from cli.example import HELDOUT, REWARD, REWARD_NAME, TRAIN, Uploads, job_spec

READY_TIMEOUT_S = 120.0
FIRST_LINE = "stage_preparing"


def main() -> None:
    parser = argparse.ArgumentParser(prog="podium bench startup")
    parser.add_argument("--rounds", type=int, default=4, help="starts; the first is cold")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    ready_s: list[float] = []
    first_line_s: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            ready, first_line = _round(Path(folder))
            ready_s.append(ready)
            first_line_s.append(first_line)
    rows = [
        _row("podium up to ready, cold", ready_s[:1], at_most=None),
        _row("podium up to ready, warm", ready_s[1:], at_most=10.0),
        _row("submit to the trainer's first line", first_line_s, at_most=3.0),
    ]
    show("startup", rows, as_json=arguments.json)


def _round(folder: Path) -> tuple[float, float]:
    """Seconds to ready, and seconds from the answer to a submit until the trainer's first line."""
    started_at = time.monotonic()
    command = [sys.executable, "-m", "cli.main", "up", "--data", str(folder / "data"), "--port", "0"]
    with (folder / "up.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        connection = _wait_ready(folder / "data" / "connection.json", process)
        ready = time.monotonic() - started_at
        return ready, _submit_and_wait(Client(connection.url, connection.api_key))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=READY_TIMEOUT_S)


def _wait_ready(path: Path, process: subprocess.Popen[bytes]) -> Connection:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("podium up did not become ready; see up.log")
        time.sleep(0.01)
    return Connection.model_validate_json(path.read_text())


def _submit_and_wait(client: Client) -> float:
    uploads = Uploads(
        client.upload_file(TRAIN), client.upload_file(HELDOUT), client.upload_reward(REWARD, name=REWARD_NAME)
    )
    submitted_at = time.time()
    job = client.submit(job_spec(uploads))
    at = _first_line(client, job.id)
    client.cancel(job.id)
    _wait_ended(client, job.id)
    return at - submitted_at


def _first_line(client: Client, job_id: str) -> float:
    """The trainer's own clock (the same machine's) at its first line of the journal."""
    while True:
        for event in client.events(job_id):
            if event.code == FIRST_LINE:
                return float(event.data["at"])
        time.sleep(0.05)


def _wait_ended(client: Client, job_id: str) -> None:
    while not client.job(job_id).has_ended:
        time.sleep(0.1)


def _row(what: str, seconds: list[float], *, at_most: float | None) -> dict[str, Any]:
    """The goal is "at most": the slowest round has to meet it."""
    return {
        "what": what,
        "rounds": len(seconds),
        "median_s": round(statistics.median(seconds), 2),
        "max_s": round(max(seconds), 2),
        "goal_s": at_most if at_most is not None else "-",
        "met": "-" if at_most is None else max(seconds) <= at_most,
    }


if __name__ == "__main__":
    main()
