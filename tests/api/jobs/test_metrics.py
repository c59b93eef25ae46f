"""Step metrics: ranges, keys, JSON, CSV and Parquet."""

import csv
import io
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from app.jobs import metrics_export
from tests.api.jobs.runs import Run

PARQUET = "application/vnd.apache.parquet"


@pytest.fixture
def path(run: Run) -> str:
    for step in range(1, 6):
        run.step(step, reward=step / 10, kl=None if step == 3 else 0.5)
    run.step(6, **{"reward": 0.6, "rewards/exact/mean": 1.0})
    return f"{run.path}/metrics"


def test_steps_come_in_order_with_their_attempt(client: TestClient, path: str) -> None:
    reply = client.get(path).json()
    assert [row["step"] for row in reply["data"]] == [1, 2, 3, 4, 5, 6]
    assert reply["data"][2]["metrics"] == {"reward": 0.3, "kl": None}
    assert reply["data"][0]["attempt"] == 1
    assert (reply["has_more"], reply["next_from_step"]) == (False, None)


def test_a_range_and_keys_narrow_the_answer(client: TestClient, path: str) -> None:
    reply = client.get(path, params={"from_step": 2, "to_step": 3, "keys": "kl, nothing"}).json()
    assert [row["metrics"] for row in reply["data"]] == [{"kl": 0.5}, {"kl": None}]
    both = client.get(path, params={"from_step": 6, "keys": ["reward", "rewards/exact/mean"]}).json()
    assert both["data"][0]["metrics"] == {"reward": 0.6, "rewards/exact/mean": 1.0}


def test_a_long_run_is_read_in_pieces(client: TestClient, path: str) -> None:
    steps: list[int] = []
    start: int | None = 0
    while start is not None:
        reply = client.get(path, params={"from_step": start, "limit": 4}).json()
        steps += [row["step"] for row in reply["data"]]
        start = reply["next_from_step"]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_step_that_was_done_again_belongs_to_the_later_attempt(client: TestClient, run: Run) -> None:
    run.step(1, reward=0.1)
    run.again().step(1, reward=0.2)
    (row,) = client.get(f"{run.path}/metrics").json()["data"]
    assert (row["attempt"], row["metrics"]) == (2, {"reward": 0.2})


def test_steps_that_a_later_attempt_will_do_again_are_marked(client: TestClient, run: Run) -> None:
    for step in (1, 2, 3):
        run.step(step, reward=0.1)
    run.again().resume_from(1)
    rows = client.get(f"{run.path}/metrics").json()["data"]
    assert [(row["step"], row["superseded"]) for row in rows] == [(1, False), (2, True), (3, True)]
    progress = client.get(run.path).json()["progress"]
    assert (progress["step"], progress["reward"]) == (1, 0.1)


@pytest.mark.parametrize("page_steps", [1, 2, 1000])
def test_csv_has_a_column_for_every_metric_of_the_run(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch, page_steps: int
) -> None:
    monkeypatch.setattr(metrics_export, "PAGE_STEPS", page_steps)
    response = client.get(path, headers={"Accept": "text/csv"})
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert response.text.splitlines() == [
        "step,attempt,kl,reward,rewards/exact/mean",
        "1,1,0.5,0.1,",
        "2,1,0.5,0.2,",
        "3,1,,0.3,",
        "4,1,0.5,0.4,",
        "5,1,0.5,0.5,",
        "6,1,,0.6,1.0",
    ]


def test_csv_takes_the_same_range_and_keys(client: TestClient, path: str) -> None:
    text = client.get(path, params={"format": "csv", "keys": "reward", "from_step": 5}).text
    assert list(csv.DictReader(io.StringIO(text))) == [
        {"step": "5", "attempt": "1", "reward": "0.5"},
        {"step": "6", "attempt": "1", "reward": "0.6"},
    ]


def test_a_job_without_steps_has_no_metrics(client: TestClient, run: Run) -> None:
    assert client.get(f"{run.path}/metrics").json()["data"] == []
    assert client.get(f"{run.path}/metrics", params={"format": "csv"}).text == "step,attempt\n"


@pytest.mark.parametrize("query", [{"from_step": -1}, {"to_step": 2**40}, {"limit": 0}, {"format": "xml"}])
def test_bad_queries_are_refused_by_name(client: TestClient, run: Run, query: dict[str, object]) -> None:
    response = client.get(f"{run.path}/metrics", params=query)
    assert response.status_code == 422
    assert response.json()["error"]["param"] == next(iter(query))


@pytest.mark.parametrize("page_steps", [2, 1000])
@pytest.mark.parametrize("asked", [{"params": {"format": "parquet"}}, {"headers": {"Accept": PARQUET}}])
def test_parquet_has_the_same_numbers_whatever_the_pages(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], page_steps: int
) -> None:
    monkeypatch.setattr(metrics_export, "PAGE_STEPS", page_steps)
    response = client.get(path, **asked)
    assert response.headers["content-type"] == PARQUET
    table = pq.read_table(io.BytesIO(response.content))
    as_csv = list(csv.DictReader(io.StringIO(client.get(path, params={"format": "csv"}).text)))
    assert table.column_names == list(as_csv[0])
    assert [{name: _text(value) for name, value in row.items()} for row in table.to_pylist()] == as_csv


def _text(value: float | None) -> str:
    return "" if value is None else str(value)


def test_parquet_of_a_run_without_steps_is_a_table_without_rows(client: TestClient, run: Run) -> None:
    content = client.get(f"{run.path}/metrics", params={"format": "parquet"}).content
    assert pq.read_table(io.BytesIO(content)).num_rows == 0
