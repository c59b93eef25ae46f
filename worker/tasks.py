"""The one task: start a supervisor for the hinted job, and wait for it.

The supervisor is a process of its own, so that neither a database handle nor a CUDA context ever lives in a Celery
child, and so that all memory is given back at its end.
"""

import os
import signal

import structlog

from core.failpoints import failpoint
from core.ids import JobId
from core.queue import TRAIN_TASK
from worker import supervisor_process
from worker.main import app, is_stopping

log = structlog.get_logger()


@app.task(name=TRAIN_TASK)  # type: ignore[untyped-decorator]
def train_job(job_id: str) -> None:
    """Run the job if it is free. A second delivery of the same hint claims nothing and ends at once."""
    if is_stopping():
        log.info("hint_left_for_others", job_id=job_id)
        return
    failpoint("task.received")
    process = supervisor_process.start(JobId(job_id))
    log.info("supervisor_started", job_id=job_id, pid=process)
    if is_stopping():  # the shutdown may have looked for supervisors just before this one was there
        os.kill(process, signal.SIGTERM)
    code = supervisor_process.wait(process)
    log.info("supervisor_ended", job_id=job_id, exit_code=code)
