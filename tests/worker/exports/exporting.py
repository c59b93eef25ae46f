"""An exporter to test: jobs that a worker runs, and exports of them in this process or in their own."""

import threading
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import update

from bench._chaos.samples import make_answer
from core.db import exports
from core.db.exports import Claim
from core.db.models import Export, now
from core.ids import JobId
from core.results import Evaluation, TaskResult
from core.spec import Hyperparameters
from tests.api.jobs.runs import Run
from tests.factories import queued_job, read_events, read_job
from tests.polling import wait_until
from tests.worker.workshop import HAPPY, Workshop
from worker.exports.run import Place, run

TASKS = 20


class Exporting:
    def __init__(self, workshop: Workshop, folder: Path) -> None:
        self.workshop = workshop
        self.folder = folder
        self.stop = threading.Event()
        workshop.set(export_poll_s=0.1, export_refresh_s=0.1)

    def queue(self, *integrations: dict[str, Any]) -> JobId:
        hyperparameters = Hyperparameters(max_steps=4, learning_rate=1e-3, num_generations=2, prompts_per_step=2)
        spec = self.workshop.spec(hyperparameters=hyperparameters)
        return queued_job(self.workshop.sessions, spec=spec, integrations=integrations)

    def happy_job(self, *integrations: dict[str, Any]) -> JobId:
        """Four steps, two evaluations, a verdict."""
        job_id = self.queue(*integrations)
        self.workshop.script(HAPPY)
        self.workshop.supervise(job_id)
        return job_id

    def running_job(self, *integrations: dict[str, Any], steps: int) -> Run:
        run = Run.claim(self.workshop.sessions, self.workshop.store, self.queue(*integrations))
        self.evaluate(run, "baseline", 0, passed=8)
        for step in range(1, steps + 1):
            run.step(step, reward=step / 10)
        return run

    def evaluate(self, run: Run, name: str, step: int, *, passed: int) -> None:
        answers = [make_answer(passed=task < passed) for task in range(TASKS)]
        tasks = tuple(
            TaskResult(task=number, prompt_sha256=f"{number:064x}", greedy=answer, sampled=(answer,))
            for number, answer in enumerate(answers)
        )
        run.evaluate(name, Evaluation(step=step, pass_threshold=1.0, tasks=tasks, seconds=0.1))

    def claim(self) -> Claim:
        with self.workshop.sessions.begin() as session:
            claim = exports.claim(session, ttl_s=60)
        assert claim is not None
        return claim

    def export(self) -> Claim:
        """What is due, to the end of the job, or to its newest step that counts."""
        self.stop.set()
        claim = self.claim()
        run(claim, self.place)
        return claim

    @property
    def place(self) -> Place:
        return Place(self.workshop.sessions, self.workshop.store, self.workshop.settings, self.stop)

    def start(self, **changes: str) -> psutil.Popen:
        """The exporter itself; its log is `self.log`."""
        settings = self.workshop.settings
        values = {f"PODIUM_{name.upper()}": str(value) for name, value in settings if name.startswith("export_")}
        return self.workshop.start("worker.exports.main", **values | {"TMPDIR": str(self.folder)} | changes)

    def log(self) -> str:
        return self.workshop.log("worker.exports.main").read_text()

    def row(self, job_id: JobId) -> Export:
        with self.workshop.sessions() as session:
            (row,) = session.query(Export).where(Export.job_id == job_id).all()
            return row

    def warnings(self, job_id: JobId) -> list[str]:
        """Codes of those about exports."""
        events = read_events(self.workshop.sessions, job_id)
        return [event.code for event in events if event.level == "warn" and event.code.startswith("export")]

    def told(self, job_id: JobId) -> str:
        """All that the job's owner can read about it."""
        events = [(event.message, event.data) for event in read_events(self.workshop.sessions, job_id)]
        return str((events, read_job(self.workshop.sessions, job_id).integrations))

    def due_now(self, job_id: JobId) -> None:
        """The pause after a failure is over."""
        with self.workshop.sessions.begin() as session:
            session.execute(update(Export).where(Export.job_id == job_id).values(due_at=now()))

    def fails_in_its_own_process(self, job_id: JobId, code: str, **environment: str) -> None:
        """Until the owner has been told so; then the exporter ends."""
        exporter = self.start(**environment)
        wait_until(lambda: code in self.warnings(job_id), what=f"the warning {code}", timeout_s=120)
        exporter.terminate()
        assert exporter.wait(60) == 0
