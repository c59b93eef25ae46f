"""Whole jobs on the whole stack, as a stranger runs them: the demo, the curl script, the openai client's script."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from safetensors import safe_open

from cli.client import Client
from cli.data_folder import Connection, DataFolder
from cli.example import HELDOUT, REWARD, TRAIN, Uploads, job_spec
from cli.stack import running_stack
from core.settings import CHECKOUT

EXAMPLES = CHECKOUT / "examples"
PODIUM = Path(sys.executable).with_name("podium")

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = DataFolder(tmp_path_factory.mktemp("stack") / "data")
    with running_stack(folder, port=0, say=print) as (_, connection):
        yield connection


def test_the_demo_teaches_the_tiny_model_what_it_promises(tmp_path):
    demo = run([PODIUM, "demo", "--data", tmp_path / "data", "--port", "0", "--out", tmp_path / "out"])
    printed = {
        line.split()[0]: line for line in demo.splitlines() if re.match(r"(baseline|final|fixed|broken|p) ", line)
    }
    assert printed.keys() == {"baseline", "final", "fixed", "broken", "p"}

    results = json.loads((tmp_path / "out/results.json").read_text())
    Draft202012Validator(json.loads((CHECKOUT / "docs/results.schema.json").read_text())).validate(results)
    before, after, verdict = (results[name] for name in ("baseline", "final", "verdict"))
    for decoding in ("greedy", "sampled"):
        assert before[decoding]["n"] == after[decoding]["n"] == 200
        assert 0.30 <= before[decoding]["pass_rate"] <= 0.75
        assert after[decoding]["pass_rate"] - before[decoding]["pass_rate"] >= 0.15
    assert verdict["outcome"] == "improved"
    assert verdict["p_value"] < 0.01
    assert (verdict["fixed"], verdict["broken"]) == tuple(int(printed[name].split()[1]) for name in ("fixed", "broken"))

    prompts = [
        json.loads(line)["messages"][0]["content"]
        for path in (TRAIN, HELDOUT)
        for line in path.read_text().splitlines()
    ]
    sentences = {prompt.splitlines()[1][:40] for prompt in prompts}
    logs = "".join(path.read_text() for path in (tmp_path / "data").rglob("*.log"))
    assert "request_answered" in logs
    assert not [sentence for sentence in sentences if sentence in logs], "prompts stay out of logs"

    config = json.loads((tmp_path / "out/adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "podium/tiny"
    with safe_open(tmp_path / "out/adapter/adapter_model.safetensors", framework="numpy") as weights:
        assert any(name.endswith("lora_A.weight") for name in weights.keys())  # noqa: SIM118 - not a dictionary


def test_the_same_job_runs_by_curl_alone(connection, tmp_path):
    printed = run([EXAMPLES / "curl.sh", connection.url, connection.api_key, tmp_path, "3"])
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["final"]["step"] == 3
    assert results["verdict"]["sentence"] in printed
    assert (tmp_path / "metrics.csv").read_text().startswith("step,")
    assert "adapter/adapter_model.safetensors" in printed


def test_the_same_job_runs_by_the_openai_client_alone(connection, tmp_path):
    script = [sys.executable, EXAMPLES / "openai_client.py", connection.url, connection.api_key, tmp_path, "24"]
    printed = run(script)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["final"]["step"] == 3
    assert [reward["form"] for reward in results["rewards"]] == ["openai"]
    assert results["verdict"]["sentence"] in printed


def test_the_same_job_is_probed_for_signal_before_it_is_paid_for(connection, tmp_path):
    with Client(connection.url, connection.api_key) as client:
        uploads = Uploads(
            client.upload_file(TRAIN), client.upload_file(HELDOUT), client.upload_reward(REWARD, name="probed")
        )
    job = tmp_path / "job.json"
    job.write_text(json.dumps(job_spec(uploads)))
    server = ["--url", connection.url, "--api-key", connection.api_key]
    document = json.loads(run([PODIUM, "signal-probe", job, "--prompts", "24", "--json", *server]))
    report = document["report"]
    assert (document["status"], report["prompts"], report["samples"]) == ("succeeded", 24, 8)
    assert 0.1 <= report["mean_pass_rate"] <= 0.9, "half of the records are right at first"
    assert report["graded_groups"] == 24
    assert [reward["user_errors"] for reward in report["rewards"]] == [0]
    assert report["advice"]


def run(command: list[object]) -> str:
    """What it printed; its whole output is the failure's message."""
    finished = subprocess.run(
        [str(word) for word in command], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout + finished.stderr
