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
    os.environ.update(QUIET)
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one process, one GPU: TRL refuses to see more
    with phases.phase(Phase.LOAD):
        from worker.training.job import run_job  # noqa: PLC0415 - torch takes seconds: the first line comes before it
    outcome = run_job(run, run.read_plan(), phases, stop)
    run.write_outcome(outcome)
    return EXIT_CODES[outcome.kind]


if __name__ == "__main__":
    sys.exit(main())
