"""A job whose real trainer is killed goes on from the store, and ends as the one that nobody touched."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import failpoints, keys
from core.db.session import Sessions
from core.ids import JobId
from core.reward_source import analyse
from core.settings import CHECKOUT, Settings
from core.spec import DataRef, JobSpec
from core.status import JobStatus
from tests.factories import make_data_ref, make_reward, queued_job
from tests.worker.training.runs import WANTED_LETTERS, toy_rows
from tests.worker.workshop import Workshop

SAVE_MODEL = (
    "import sys, pathlib; from tests.worker.training import runs; runs.save_toy_model(pathlib.Path(sys.argv[1]), True)"
)
SPEC: dict[str, Any] = {
    "model": {"name": "toy", "source": "local", "revision": None},
    "seed": 7,
    "hyperparameters": {
        "num_generations": 4,
        "prompts_per_step": 2,
        "max_steps": 6,
        "num_iterations": 2,
        "learning_rate": 0.05,
        "max_completion_length": 8,
    },
    "adapter": {"r": 4, "alpha": 8, "dropout": 0.1},
    "evaluation": {"pass_threshold": 0.3},
    "checkpoints": {"every_steps": 3, "every_minutes": None},
}


@pytest.fixture
def workshop(tmp_path: Path, settings: Settings, sessions: Sessions) -> Iterator[Workshop]:
    model = tmp_path / "toy"
    subprocess.run([sys.executable, "-c", SAVE_MODEL, model], cwd=CHECKOUT, check=True)
    workshop = Workshop(tmp_path, settings, sessions)
    workshop.set(trainer_python=Path(sys.executable), models={"toy": model})
    yield workshop
    workshop.close()


def put_rows(workshop: Workshop, rows: list[dict[str, Any]]) -> DataRef:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    data = make_data_ref(content)
    workshop.store.put_bytes(keys.data_file(data.file_id), content)
    return data


def queue(workshop: Workshop) -> JobId:
    entry = analyse(WANTED_LETTERS)
    reward = make_reward("letters", WANTED_LETTERS, entry_point=entry.name, form=entry.form)
    rows = toy_rows(9)
    data = {"training": put_rows(workshop, rows[:5]), "held_out": put_rows(workshop, rows[5:])}
    spec = JobSpec.model_validate({**SPEC, **data, "rewards": [reward]})
    return queued_job(workshop.sessions, spec=spec, sources={"letters": WANTED_LETTERS})


def test_a_job_killed_in_the_middle_ends_with_the_weights_of_one_that_was_not(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
):
    unbroken, killed = queue(workshop), queue(workshop)
    workshop.supervise(unbroken)
    with monkeypatch.context() as patch:
        patch.setenv(failpoints.VARIABLE, "step.reported@5=kill")  # read by the trainer when it starts
        workshop.supervise(killed)
    assert workshop.status(killed) is JobStatus.QUEUED
    workshop.supervise(killed)
    assert [workshop.status(job_id) for job_id in (unbroken, killed)] == [JobStatus.SUCCEEDED] * 2
    assert workshop.event(killed, "resumed") == {"step": 3, "redone_steps": 2}
    audit = workshop.event(killed, "resume_audit")
    assert (audit["steps_compared"], audit["exact"]) == (2, True)
    weights = [workshop.artifacts(job_id)["adapter/adapter_model.safetensors"] for job_id in (unbroken, killed)]
    assert weights[0].sha256 == weights[1].sha256
