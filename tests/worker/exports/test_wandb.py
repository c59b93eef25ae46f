"""W&B: an offline run is read back from its file; of online ones only what needs no server of theirs is tried."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.ids import JobId
from tests.factories import event_codes
from tests.ports import free_port
from tests.worker.exports.exporting import Exporting

pytest.importorskip("wandb", reason="wandb is not installed")
wandb_internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")

WANDB = {"type": "wandb", "wandb": {"project": "biography", "name": "first try", "tags": ["grpo"]}}
BLOCK_BYTES = 32 * 1024
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def folder(exporting: Exporting, tmp_path: Path) -> Path:
    exporting.workshop.set(wandb_mode="offline", wandb_dir=tmp_path / "wandb-runs")
    return tmp_path / "wandb-runs"


def records(folder: Path, job_id: JobId) -> Iterator[Any]:
    """What `wandb sync` would send: W&B's own messages, in the log format of LevelDB with a header of 7 bytes."""
    (path,) = folder.glob(f"wandb/offline-run-*/run-{job_id}.wandb")
    data = path.read_bytes()
    assert data.startswith(b":W&B")
    at, message = 7, b""
    while at + 7 <= len(data):
        if BLOCK_BYTES - at % BLOCK_BYTES < 7:  # too little for a header: the rest of the block is padding
            at += BLOCK_BYTES - at % BLOCK_BYTES
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        message += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # the whole, or the last part of one
            yield wandb_internal_pb2.Record.FromString(message)
            message = b""


def values(items: Any) -> dict[str, str]:
    """JSON texts by name; of a nested name, its parts with slashes."""
    return {item.key or "/".join(item.nested_key): item.value_json for item in items}


def test_an_offline_run_has_the_config_the_steps_and_the_verdict(exporting: Exporting, folder: Path):
    job_id = exporting.happy_job(WANDB)
    exporting.export()
    found = list(records(folder, job_id))
    (run,) = [record.run for record in found if record.HasField("run")]
    assert (run.run_id, run.project, run.display_name, list(run.tags)) == (job_id, "biography", "first try", ["grpo"])
    assert {"spec", "model", "job_id"} <= {item.key for item in run.config.update}
    history = [values(record.history.item) for record in found if record.HasField("history")]
    assert [(row["_step"], row.get("reward")) for row in history] == [
        ("0", None), ("1", "0.1"), ("2", "0.2"), ("3", "0.3"), ("4", "0.4"),
    ]  # fmt: skip
    assert (history[0]["eval/greedy/pass_rate"], history[4]["eval/greedy/pass_rate"]) == ("0.4", "0.8")
    first = exporting.workshop.steps(job_id)[0]
    assert float(history[1]["_timestamp"]) == pytest.approx(first.created_at.timestamp())
    summary: dict[str, str] = {}
    for record in found:
        summary |= values(record.summary.update)
    assert (summary["verdict"], summary["verdict/fixed"]) == ('"improved"', "8")
    (exit_record,) = [record.exit for record in found if record.HasField("exit")]
    assert exit_record.exit_code == 0


def test_a_half_written_offline_run_is_replaced(exporting: Exporting, folder: Path):
    run = exporting.running_job(WANDB, steps=2)
    half = folder / "wandb" / f"offline-run-20260101_000000-{run.job_id}"
    half.mkdir(parents=True)
    (half / f"run-{run.job_id}.wandb").write_bytes(b":W&B")
    run.fail()
    exporting.export()
    history = [record.history for record in records(folder, run.job_id) if record.HasField("history")]
    assert [values(row.item)["_step"] for row in history] == ["0", "1", "2"]


def test_a_server_that_is_away_is_a_warning_and_the_key_is_in_no_reply_and_no_log(exporting: Exporting):
    exporting.workshop.set(export_call_s=10.0)
    run = exporting.running_job(WANDB, steps=2)
    away = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": f"http://127.0.0.1:{free_port()}"}
    exporting.fails_in_its_own_process(run.job_id, "export_failed", **away)
    assert "CommError" in exporting.log()
    assert KEY not in exporting.log() + exporting.told(run.job_id)
    run.step(3, reward=0.3)
    run.fail()
    assert event_codes(exporting.workshop.sessions, run.job_id)[-1] == "failed"
