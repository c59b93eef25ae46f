"""The trainer process: `python -m worker.training.run RUN_DIR`. All it knows and all it says is in that folder."""

import faulthandler
import os
import sys
import time
from pathlib import Path

from core.status import Stage
from worker.run_directory import FAILED_EXIT_CODE, STACKS_SIGNAL, STOPPED_EXIT_CODE, RunDirectory, StageStarted
from worker.training.phases import Phase, PhaseTimer
from worker.training.stop import StopRequest
from worker.training.team.followers import followers_of

EXIT_CODES = {"finished": 0, "stopped": STOPPED_EXIT_CODE, "failed": FAILED_EXIT_CODE}
QUIET = {
    "DISABLE_SAFETENSORS_CONVERSION": "1",  # transformers would ask a bot on the Hub to convert pickled weights
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TQDM_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> int:
    phases = PhaseTimer()
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    run = RunDirectory(Path(sys.argv[1]).resolve())
    run.append(StageStarted(at=time.time(), stage=Stage.PREPARING))
    stop = StopRequest()
    stop.listen()
    plan = run.read_plan()
    processes = plan.spec.resources.gpus if plan.probe is None else 1
    os.environ.update(QUIET, CUDA_VISIBLE_DEVICES=gpus_for(processes, os.environ.get("CUDA_VISIBLE_DEVICES")))
    with followers_of(run, processes - 1) as followers:
        with phases.phase(Phase.LOAD):
            from worker.training.job import run_job  # noqa: PLC0415 - torch takes seconds: the first line comes before
        outcome = followers.explain(run_job(run, plan, phases, stop, followers))
        run.write_outcome(outcome)
    return EXIT_CODES[outcome.kind]


def gpus_for(processes: int, visible: str | None) -> str:
    """`CUDA_VISIBLE_DEVICES` of a run: as many of the worker's GPUs as it has processes; TRL refuses to see more."""
    ours = [str(number) for number in range(processes)] if visible is None else visible.split(",")
    return ",".join(ours[:processes])


if __name__ == "__main__":
    sys.exit(main())
