"""What stays on a worker's disk, and for how long."""

import os
from pathlib import Path

from tests.polling import wait_until
from tests.worker.test_fencing import SERVING
from tests.worker.workshop import Workshop
from worker import leftovers


def left(runs_dir: Path, name: str, *, age_s: float) -> Path:
    folder = runs_dir / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "weights").write_bytes(b"heavy")
    then = folder.stat().st_mtime - age_s
    os.utime(folder, (then, then))
    return folder


def test_only_what_is_old_and_held_by_nobody_goes(tmp_path: Path):
    old, young = left(tmp_path, "job-1/a0001", age_s=100), left(tmp_path, "job-2/a0001", age_s=0)
    held = left(tmp_path, "job-3/a0001", age_s=0)
    descriptor = leftovers.hold(held)
    os.utime(held, (0, 0))
    leftovers.sweep(tmp_path, older_than_s=50)
    assert (old.exists(), old.parent.exists(), young.exists(), held.exists()) == (False, False, True, True)
    os.close(descriptor)
    leftovers.sweep(tmp_path, older_than_s=50)
    assert not held.exists()


def test_nothing_was_ever_run_here(tmp_path: Path):
    leftovers.sweep(tmp_path / "never")


def test_a_running_job_holds_its_folder_and_a_killed_one_leaves_it_free(workshop: Workshop):
    workshop.script(SERVING)
    job_id = workshop.queue()
    supervisor = workshop.start_supervisor(job_id)
    workshop.wait_for_step(job_id, 1)
    folder = workshop.settings.runs_dir / job_id / "a0001"
    os.utime(folder, (0, 0))
    leftovers.sweep(workshop.settings.runs_dir)
    assert folder.exists()
    supervisor.kill()
    supervisor.wait(10)

    def is_gone() -> bool:
        """Its trainer, which dies with it, may still write there."""
        if folder.exists():
            os.utime(folder, (0, 0))
        leftovers.sweep(workshop.settings.runs_dir)
        return not folder.exists()

    wait_until(is_gone, what="the folder of the killed supervisor is gone")
