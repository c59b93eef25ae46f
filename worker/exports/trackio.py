"""trackio, in the folder that the operator's `trackio show` looks at. The run's name ends with the job's id.

Its client warns where others raise, and writes in the background: so after every batch its database is asked whether
it is there, as it is at the start.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import trackio
from trackio.sqlite_storage import SQLiteStorage

from core.integrations import TrackioRun
from core.settings import Settings
from worker.exports.target import NONE_YET, Conclusion, ExportFailed, ExportNotConfigured, Point, RunFacts

LONGEST_WAIT_S = 30.0
"""For its thread to write what was logged; it looks twice a second."""
POLL_S = 0.05


class TrackioStream:
    def __init__(self, run: TrackioRun, settings: Settings) -> None:
        if settings.trackio_dir is None:
            fix = "Set TRACKIO_DIR where the exporter runs: a folder that outlives it."
            raise ExportNotConfigured("There is no folder for trackio.", fix=fix)
        self.where = f"trackio, project {run.project}"
        self._named = run
        self._folder = Path(settings.trackio_dir)

    def open(self, facts: RunFacts) -> int:
        self._folder.mkdir(parents=True, exist_ok=True)
        name = facts.job_id if self._named.name is None else f"{self._named.name} {facts.job_id}"
        self._run = trackio.init(
            project=self._named.project,
            name=name,
            config=facts.flat_config(),
            resume="allow",
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )
        return self._last_step()

    def send(self, points: Sequence[Point]) -> None:
        for point in points:
            self._run.log({**point.values, "podium/attempt": point.attempt}, step=point.step)
        if points:
            self._wait_for(points[-1].step)

    def finish(self, points: Sequence[Point], conclusion: Conclusion) -> None:
        """It has no place for a summary: how the job ended stands in the last step."""
        if points:
            *before, last = points
            ended = Point(last.step, last.at, last.attempt, {**last.values, **conclusion.numbers})
            self.send(before)
            self._run.log({**ended.values, **conclusion.words, "podium/attempt": last.attempt}, step=last.step)
            self._wait_for(last.step)
        self._run.finish()

    def leave(self) -> None:
        self._run.finish()

    def _last_step(self) -> int:
        step: int | None = SQLiteStorage.get_max_step_for_run(self._named.project, self._run.name)
        return NONE_YET if step is None else step

    def _wait_for(self, step: int) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_S
        while self._last_step() < step:
            if time.monotonic() > deadline:
                raise ExportFailed(f"trackio did not keep step {step}.")
            time.sleep(POLL_S)


def make(run: TrackioRun, settings: Settings) -> TrackioStream:
    return TrackioStream(run, settings)
