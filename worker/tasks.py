"""The one task: start a supervisor for the hinted job, and wait for it.

The supervisor is a process of its own, so that neither a database handle nor a CUDA context ever lives in a Celery
child, and so that all memory is given back at its end.
"""

import os
import subprocess
import sys

import structlog

from core.failpoints import failpoint
from core.queue import TRAIN_TASK
from worker.main import SUPERVISOR_MODULE, app, is_stopping
from worker.parent import parent_environment

log = structlog.get_logger()


@app.task(name=TRAIN_TASK)  # type: ignore[untyped-decorator]
def train_job(job_id: str) -> None:
    """Run the job if it is free. A second delivery of the same hint claims nothing and ends at once."""
    if is_stopping():
        log.info("hint_left_for_others", job_id=job_id)
        return
    failpoint("task.received")
    process = subprocess.Popen(
        [sys.executable, "-m", SUPERVISOR_MODULE, job_id],
        env=os.environ | parent_environment(),
        start_new_session=True,
    )
    log.info("supervisor_started", job_id=job_id, pid=process.pid)
    if is_stopping():  # the shutdown may have looked for supervisors just before this one was there
        process.terminate()
    code = process.wait()
    log.info("supervisor_ended", job_id=job_id, exit_code=code)
