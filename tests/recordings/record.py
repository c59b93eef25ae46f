"""Runs the cases through the trainer and keeps their numbers: `python -m tests.recordings.record [NAME ...]`.

Each is a real run of the bundled model on one thread, some minutes long. Its numbers depend on the machine's
arithmetic, so a new recording is a new draw. Without names, those that have no recording are made.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cli.example import EXAMPLE, HELDOUT, TRAIN
from core.ids import FileId, JobId
from core.reward_source import analyse
from core.rows import FileFormat
from core.settings import CHECKOUT
from core.spec import DataRef, JobSpec, PinnedReward
from tests.recordings.cases import CASES, Case
from tests.recordings.recording import of_run, path_of
from worker.run_directory import RunDirectory, RunPlan
from worker.training import run as trainer

MODEL = CHECKOUT / "examples/tiny_model/podium-tiny"
HELD_OUT_TASKS = 60
ONE_THREAD = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.recordings.record")
    parser.add_argument("names", nargs="*", choices=[[], *CASES])
    names = parser.parse_args().names or [name for name in CASES if not path_of(name).exists()]
    os.environ |= ONE_THREAD
    multiprocessing.get_context("forkserver").set_forkserver_preload(["worker.training.job"])
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            run = _lay_out(RunDirectory(Path(folder).resolve()), CASES[name])
            _train(run)
            path_of(name).write_text(of_run(run))
        print(name, file=sys.stderr, flush=True)


def _lay_out(run: RunDirectory, case: Case) -> RunDirectory:
    run.data.mkdir()
    (run.path / "rewards").mkdir()
    demo = json.loads((EXAMPLE / "job.json").read_text())["method"]["grpo"]
    spec = {
        "model": {"name": "podium/tiny", "source": "local", "revision": None},
        "training": _write_rows(run.training_file, TRAIN),
        "held_out": _write_rows(run.held_out_file, HELDOUT, most=HELD_OUT_TASKS),
        "rewards": list(_rewards(run, case)),
        "seed": case.seed,
        "hyperparameters": demo["hyperparameters"] | {"max_steps": case.steps} | case.hyperparameters,
        "adapter": demo["adapter"],
        "evaluation": demo["evaluation"],
        "checkpoints": {"every_steps": 1000, "every_minutes": None},
        **case.spec,
    }
    plan = RunPlan(job_id=JobId("ftjob-recorded"), attempt=1, spec=JobSpec.model_validate(spec), model_path=MODEL)
    run.create(plan)
    return run


def _write_rows(path: Path, source: Path, most: int | None = None) -> Mapping[str, Any]:
    lines = source.read_bytes().splitlines(keepends=True)[:most]
    path.write_bytes(b"".join(lines))
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    reference = DataRef(
        file_id=FileId("file-1"), filename=source.name, format=FileFormat.JSONL, sha256=digest, rows=len(lines)
    )
    return reference.model_dump()


def _rewards(run: RunDirectory, case: Case) -> Iterator[dict[str, Any]]:
    for name, source in case.rewards.items():
        run.reward_source(name).write_text(source)
        entry = analyse(source, entry_point="reward")
        digest = hashlib.sha256(source.encode()).hexdigest()
        weight = case.weights.get(name, 1.0)
        yield PinnedReward(
            name=name, source_sha256=digest, entry_point=entry.name, form=entry.form, weight=weight
        ).model_dump()


def _train(run: RunDirectory) -> None:
    process = multiprocessing.get_context("forkserver").Process(target=_trainer_main, args=(run,))
    process.start()
    process.join()
    outcome = run.read_outcome()
    if outcome is None or outcome.kind != "finished":
        raise SystemExit(f"{outcome}\n{run.log.read_text()[-4000:]}")


def _trainer_main(run: RunDirectory) -> None:
    log = os.open(run.log, os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = ["worker.training.run", str(run.path)]
    trainer.main()


if __name__ == "__main__":
    main()
