"""trackio, in the folder that the operator's `trackio show` looks at. The run's name ends with the job's id.

Its client warns where others raise, and writes in the background: so after every batch its database is asked whether
it is there, as it is at the start.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import trackio
from trackio.sqlite_storage import SQLiteStorage

from core.integrations import TrackioRun
from core.settings import Settings
from worker.exports.target import NONE_YET, Conclusion, ExportFailed, ExportNotConfigured, Point, RunFacts

LONGEST_WAIT_S = 30.0
"""For its thread to write what was logged; it looks twice a second."""
POLL_S = 0.05
END = "status"
"""Of a conclusion's words the one that is never missing."""


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
            last = points[-1].step
            self._wait_until(lambda: self._last_step() >= last, f"step {last}")

    def finish(self, points: Sequence[Point], conclusion: Conclusion) -> None:
        """It has no place for a summary: how the job ended stands in the last step, or in one more line of it."""
        self.send(points[:-1])
        end = {**conclusion.numbers, **conclusion.words}
        for last in points[-1:]:
            self._run.log({**last.values, **end, "podium/attempt": last.attempt}, step=last.step)
        if not points and not self._has_end():
            self._run.log(end, step=max(0, self._last_step()))
        self._wait_until(self._has_end, "the job's end")
        self._run.finish()

    def leave(self) -> None:
        self._run.finish()

    def _last_step(self) -> int:
        step: int | None = SQLiteStorage.get_max_step_for_run(self._named.project, self._run.name)
        return NONE_YET if step is None else step

    def _has_end(self) -> bool:
        rows = SQLiteStorage.get_logs(self._named.project, self._run.name)
        return bool(rows) and END in rows[-1]

    def _wait_until(self, is_kept: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LONGEST_WAIT_S
        while not is_kept():
            if time.monotonic() > deadline:
                raise ExportFailed(f"trackio did not keep {what}.")
            time.sleep(POLL_S)


def make(run: TrackioRun, settings: Settings) -> TrackioStream:
    return TrackioStream(run, settings)
