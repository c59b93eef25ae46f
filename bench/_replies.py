"""How long a person waits for `POST /v1/fine_tuning/alpha/graders/run`: the local stack, its API and grading worker."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from cli.data_folder import Connection, DataFolder
from cli.stack import running_stack

RUN = "/v1/fine_tuning/alpha/graders/run"
ANSWER, TASK = "{{sample.output_text}}", "{{item.answer}}"
GRADERS: Mapping[str, Mapping[str, Any]] = {
    "python": {
        "type": "python",
        "name": "exact",
        "source": "def grade(sample, item):\n    return float(sample['output_text'] == item['answer'])\n",
    },
    "string_check": {
        "type": "string_check",
        "name": "exact",
        "input": ANSWER,
        "reference": TASK,
        "operation": "eq",
    },
    "math": {"type": "podium", "rewards": [{"builtin": "math", "column": "answer"}]},
}
READY_S = 60.0


def reply_ms(tries: int) -> dict[str, list[float]]:
    """By kind of grader, of each of `tries` calls, one after the other; each starts a sandbox of its own."""
    with (
        tempfile.TemporaryDirectory() as folder,
        running_stack(DataFolder(Path(folder, "data")), port=0, say=_quiet) as (_, connection),
        _client(connection) as client,
    ):
        _wait_for_grading_worker(client)
        return {kind: [_reply_ms(client, grader) for _ in range(tries)] for kind, grader in GRADERS.items()}


def _client(connection: Connection) -> httpx.Client:
    headers = {"Authorization": f"Bearer {connection.api_key}"}
    return httpx.Client(base_url=connection.url, headers=headers, timeout=READY_S)


def _wait_for_grading_worker(client: httpx.Client) -> None:
    """It may be up later than the API, which answers 503 until then."""
    deadline = time.monotonic() + READY_S
    while (answer := _run(client, GRADERS["python"])).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        if time.monotonic() > deadline:
            raise SystemExit(f"the grading worker did not come up: {answer.text}")
        time.sleep(0.1)


def _reply_ms(client: httpx.Client, grader: Mapping[str, Any]) -> float:
    started = time.perf_counter()
    answer = _run(client, grader)
    passed_ms = (time.perf_counter() - started) * 1000
    if answer.is_error or answer.json()["reward"] != 1.0:
        raise SystemExit(f"{RUN} answered {answer.status_code}: {answer.text}")
    return passed_ms


def _run(client: httpx.Client, grader: Mapping[str, Any]) -> httpx.Response:
    return client.post(RUN, json={"grader": grader, "item": {"answer": "4"}, "model_sample": "4"})


def _quiet(_: str) -> None:
    """Standard output is the table's alone."""
