"""A worker to test: its ledger, its store, a scripted trainer, and supervisors in this process or in their own."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from core import keys
from core.db import jobs, progress
from core.db.models import Artifact, JobAttempt, StepMetrics
from core.db.session import Sessions
from core.ids import JobId, new_file_id
from core.settings import CHECKOUT, Settings
from core.spec import DataRef, JobSpec
from core.status import JobStatus
from core.storage.connect import open_store
from tests.factories import make_data_ref, make_spec, queued_job, read_events, read_job
from tests.polling import wait_until
from worker.supervisor import supervise

ROWS = b'{"prompt": "2+2", "answer": "4"}\n' * 20
HAPPY = [["stage", "baseline"], ["baseline"], ["stage", "training"], ["steps", 4], ["checkpoint"], ["finish"]]


class Workshop:
    def __init__(self, folder: Path, settings: Settings, sessions: Sessions) -> None:
        self.folder = folder
        self.sessions = sessions
        self.settings = settings.model_copy(
            update={
                "trainer_python": folder / "trainer",
                "supervisor_poll_s": 0.1,
                "stop_grace_s": 10.0,
                "lease_renew_s": 0.2,
            }
        )
        self.store = open_store(self.settings)
        self._script = folder / "script.json"
        self._processes: list[psutil.Popen] = []
        self._write_trainer()

    def set(self, **changes: Any) -> None:
        self.settings = self.settings.model_copy(update=changes)
        self.store = open_store(self.settings)

    def script(self, *attempts: list[list[Any]]) -> None:
        """What the trainer does at the first attempt, the second, ... The last serves all later ones."""
        self._script.write_text(json.dumps(attempts))

    def queue(self, **changes: Any) -> JobId:
        """A job whose data is in the store."""
        return queued_job(self.sessions, spec=self.spec(**changes))

    def spec(self, **changes: Any) -> JobSpec:
        return make_spec(training=self._put_data(), held_out=self._put_data(), **changes)

    def supervise(self, job_id: JobId) -> None:
        """One attempt, in this process."""
        supervise(job_id, self.sessions, self.store, self.settings)

    def start_supervisor(self, job_id: JobId, **changes: str) -> psutil.Popen:
        return self.start("worker.supervisor", job_id, **changes)

    def start(self, module: str, *arguments: str, **changes: str) -> psutil.Popen:
        """One of our processes, ended with the test. Its log is `log(module)`; `changes` are environment variables."""
        with self.log(module).open("ab") as log:
            process = psutil.Popen(
                [sys.executable, "-m", module, *arguments],
                env=os.environ | self.environment() | changes,
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        return process

    def log(self, module: str) -> Path:
        return self.folder / f"{module}.log"

    def environment(self) -> dict[str, str]:
        settings = self.settings
        names = ("database_url", "store_url", "runs_dir", "trainer_python", "supervisor_poll_s", "stop_grace_s")
        names += ("lease_ttl_s", "lease_renew_s", "lease_margin_s", "max_failures", "dispatch_poll_s", "hint_repeat_s")
        names += ("watchdog_first_s", "watchdog_least_s")
        values = {f"PODIUM_{name.upper()}": str(getattr(settings, name)) for name in names}
        return values | {"PODIUM_BROKER_URL": settings.broker_url.get_secret_value()}

    def close(self) -> None:
        for process in self._processes:
            for victim in (*_descendants(process), process):
                _kill(victim)
            process.wait(10)

    def status(self, job_id: JobId) -> JobStatus:
        return read_job(self.sessions, job_id).status

    def wait_for_status(self, job_id: JobId, status: JobStatus) -> None:
        wait_until(lambda: self.status(job_id) is status, what=f"{job_id} is {status}")

    def wait_for_event(self, job_id: JobId, code: str) -> None:
        def has_come() -> bool:
            return any(event.code == code for event in read_events(self.sessions, job_id))

        wait_until(has_come, what=f"event {code} of {job_id}")

    def wait_for_step(self, job_id: JobId, step: int) -> None:
        wait_until(lambda: read_job(self.sessions, job_id).step >= step, what=f"{job_id} is at step {step}")

    def cancel(self, job_id: JobId) -> None:
        with self.sessions.begin() as session:
            job = jobs.get(session, job_id)
            assert job is not None
            jobs.request_cancel(session, job)

    def steps(self, job_id: JobId) -> list[StepMetrics]:
        with self.sessions() as session:
            return list(progress.steps(session, job_id))

    def attempts(self, job_id: JobId) -> list[JobAttempt]:
        with self.sessions() as session:
            return list(progress.attempts(session, job_id))

    def artifacts(self, job_id: JobId) -> dict[str, Artifact]:
        with self.sessions() as session:
            return {artifact.name: artifact for artifact in progress.artifacts(session, job_id)}

    def event(self, job_id: JobId, code: str) -> dict[str, Any]:
        """The data of the newest event with this code."""
        return [event.data for event in read_events(self.sessions, job_id) if event.code == code][-1]

    def _put_data(self) -> DataRef:
        data = make_data_ref(ROWS, new_file_id())
        self.store.put_bytes(keys.data_file(data.file_id), ROWS)
        return data

    def _write_trainer(self) -> None:
        trainer = self.folder / "trainer"
        command = f'exec "{sys.executable}" -m tests.worker.scripted_trainer "{self._script}" "$@"'
        trainer.write_text(f"#!/bin/sh\n{command}\n")
        trainer.chmod(trainer.stat().st_mode | stat.S_IXUSR)


def trainer_of(supervisor: psutil.Popen) -> psutil.Process:
    """The trainer that this supervisor has started, once it has."""

    def find() -> psutil.Process | None:
        found = [
            child for child in supervisor.children() if "tests.worker.scripted_trainer" in " ".join(child.cmdline())
        ]
        return found[0] if found else None

    return wait_until(find, what="a trainer is there")


def is_running(process: psutil.Process) -> bool:
    """Zombies are not: where nobody reaps orphans they stay in the process table."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return
