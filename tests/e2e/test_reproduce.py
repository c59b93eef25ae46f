"""`podium reproduce` on the whole stack: on one CPU a job comes out the same to the bit; what changes it shows."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.client import Client
from cli.data_folder import Connection, DataFolder
from cli.example import HELDOUT, REWARD, TRAIN, Uploads, job_spec
from cli.stack import running_stack
from core.settings import CHECKOUT
from tests.polling import wait_until

PODIUM = Path(sys.executable).with_name("podium")
STEPS = 2
HALVED = """
whole = reward


def reward(completion: str, record: dict[str, str | None]) -> float:
    return whole(completion, record) / 2
"""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    folder = DataFolder(tmp_path_factory.mktemp("stack") / "data")
    with running_stack(folder, port=0, say=print) as (_, connection):
        yield connection


@pytest.fixture(scope="module")
def bundle(connection: Connection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a short job with interim evaluations."""
    folder = tmp_path_factory.mktemp("bundle")
    heldout = folder / "heldout.jsonl"
    heldout.write_bytes(b"".join(HELDOUT.read_bytes().splitlines(keepends=True)[:8]))
    with Client(connection.url, connection.api_key) as client:
        uploads = Uploads(
            client.upload_file(TRAIN), client.upload_file(heldout), client.upload_reward(REWARD, name="biography")
        )
        spec = job_spec(uploads)
        spec["method"]["grpo"]["hyperparameters"] |= {"max_steps": STEPS, "prompts_per_step": 2, "num_generations": 4}
        spec["method"]["grpo"]["evaluation"] = {"every_steps": 1}
        job = client.submit(spec)
        wait_until(lambda: client.job(job.id).has_ended, what="the job has ended", timeout_s=240)
        assert client.job(job.id).status == "succeeded"
        archive = folder / "bundle.tar"
        archive.write_bytes(client.get(f"/v1/fine_tuning/jobs/{job.id}/bundle"))
    return archive


def test_on_one_cpu_every_figure_comes_out_the_same(connection: Connection, bundle: Path):
    code, printed = reproduce(bundle, connection)
    assert code == 0, printed
    assert "figures are equal, to the last bit." in printed
    compared = {line.split("  ")[0]: line.split() for line in printed.splitlines()}
    for group in ("step metrics", "evaluation baseline", "evaluation step-1", "evaluation final", "adapter"):
        assert compared[group][-2:] == ["0", "0"], printed
    assert int(compared["step metrics"][2]) > 20, "metrics of every step are among them"


def test_another_reward_shows_in_the_figures_that_it_changes(connection: Connection, bundle: Path, tmp_path: Path):
    changed = tmp_path / "reward.py"
    changed.write_text(REWARD.read_text() + HALVED)
    code, printed = reproduce(bundle, connection, "--reward", f"biography={changed}", "--tolerance", "0.001")
    assert code == 1, printed
    (line,) = (line for line in printed.splitlines() if line.startswith("step metrics: reward "))
    assert line.split()[3:6] == ["differs", "step", "1"], printed
    assert "evaluation baseline: reward" in printed
    assert "rewards[0].source_sha256" in printed
    assert "Replaced on purpose: biography." in printed


def reproduce(bundle: Path, connection: Connection, *options: str) -> tuple[int, str]:
    """Exit code and all that was printed."""
    command = [PODIUM, "reproduce", bundle, "--url", connection.url, "--api-key", connection.api_key, *options]
    finished = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return finished.returncode, finished.stdout + finished.stderr
