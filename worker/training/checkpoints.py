"""A checkpoint: all that a run needs to go on as if it had never stopped. It appears whole, by rename.

    adapter_model.safetensors, adapter_config.json    the policy (or model.safetensors, config.json, ...)
    optimizer.pt, scheduler.pt, scaler.pt             as transformers saves them
    rng_state.pth                                     Python's, NumPy's and torch's random states; of several processes
                                                      rng_state_0.pth, rng_state_1.pth, ...
    trainer_state.json                                transformers' step and epoch, hence the place in the data
    rollout_buffer.pt                                 TRL's micro-step counter, and rollouts still to be used; those of
                                                      other processes in rollout_buffer_1.pt, ...
    progress.json                                     the run's tally and the scores of its evaluations

Taken at the end of a step, on a CPU, it makes the rest of the run come out bit for bit the same.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from core.failpoints import failpoint
from worker.files import write_atomically
from worker.run_directory import RunDirectory
from worker.training.export import save_policy
from worker.training.moment import Account
from worker.training.progress import Progress
from worker.training.trainer import PodiumTrainer, save_buffer

PROGRESS_FILE = "progress.json"
STATE_FILE = "trainer_state.json"


def save_checkpoint(
    trainer: PodiumTrainer, run: RunDirectory, progress: Progress, others: Sequence[Account] = ()
) -> None:
    """`others`: of the processes that train beside this one. Weights and optimizer are the same in all.

    Raises what the disk says when it is full; the half-written draft is gone by then, and its room free again."""
    step = trainer.state.global_step
    draft = _new_draft(run, step)
    try:
        save_policy(trainer.model, draft)
        trainer._save_optimizer_and_scheduler(str(draft))
        trainer._save_scaler(str(draft))
        trainer._save_rng_state(str(draft))
        trainer.state.save_to_json(str(draft / STATE_FILE))
        save_buffer(trainer.buffer, draft)
        for rank, account in enumerate(others, start=1):
            torch.save(account.random_states, draft / f"rng_state_{rank}.pth")
            save_buffer(account.buffer, draft, rank=rank)
        failpoint("save.draft_written")
        _publish(draft, run.checkpoint(step), progress)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def load_progress(folder: Path) -> Progress:
    return Progress.model_validate_json((folder / PROGRESS_FILE).read_bytes())


def _new_draft(run: RunDirectory, step: int) -> Path:
    draft = run.checkpoint(step).with_name(f".step-{step}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    return draft


def _publish(draft: Path, place: Path, progress: Progress) -> None:
    write_atomically(draft / PROGRESS_FILE, progress.model_dump_json())
    for path in [*draft.rglob("*"), draft]:
        _sync(path)
    if place.exists():
        shutil.rmtree(place)
    draft.rename(place)
    _sync(place.parent)
    failpoint("save.published")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
