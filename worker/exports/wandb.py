"""Weights & Biases. The run's id is the job's, so every process that exports the job writes to the same run.

Online, the server says at the start which step it has (`starting_step`, with `resume="allow"`): what an exporter that
was killed had only in its buffers is not there, and is sent again. Offline there is nobody to ask: the whole run is
written at the job's end, for `wandb sync`.
"""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import wandb

from core.integrations import WandbRun
from core.settings import Settings
from core.status import JobStatus
from worker.exports.target import Conclusion, ExportNotConfigured, Point, RunFacts


class WandbStream:
    def __init__(self, run: WandbRun, settings: Settings) -> None:
        if not settings.wandb_api_key:
            fix = "Set WANDB_API_KEY where the exporter runs, or WANDB_MODE=offline with WANDB_DIR."
            raise ExportNotConfigured("There is no key for W&B.", fix=fix)
        self.where = f"W&B, project {run.project}"
        self._named = run
        self._settings = settings
        self._run: wandb.Run | None = None

    def open(self, facts: RunFacts) -> int:
        self._run = _init(self._named, facts, self._settings, "online", Path(tempfile.gettempdir()))
        self.where = self._run.url or self.where
        first_to_come: int = self._run.starting_step
        return first_to_come - 1

    def send(self, points: Sequence[Point]) -> None:
        _log(self._opened, points)

    def finish(self, points: Sequence[Point], conclusion: Conclusion) -> None:
        """Returns when the server has everything."""
        _log(self._opened, points)
        _conclude(self._opened, conclusion)

    def leave(self) -> None:
        self._opened.mark_preempting()
        self._opened.finish(exit_code=1)

    @property
    def _opened(self) -> wandb.Run:
        assert self._run is not None, "opened first"
        return self._run


class WandbOfflineRun:
    is_live: ClassVar[bool] = False

    def __init__(self, run: WandbRun, settings: Settings) -> None:
        if settings.wandb_dir is None:
            fix = "Set WANDB_DIR where the exporter runs: a folder that outlives it."
            raise ExportNotConfigured("There is no folder for offline runs of W&B.", fix=fix)
        self.where = f"an offline run of W&B, project {run.project}"
        self._named = run
        self._settings = settings
        self._folder = settings.wandb_dir

    def write(self, facts: RunFacts, points: Sequence[Point], conclusion: Conclusion | None) -> None:
        """What a process that was killed had begun goes first: `wandb sync` would send both."""
        for begun in self._folder.glob(f"wandb/offline-run-*-{facts.job_id}"):
            shutil.rmtree(begun)
        self._folder.mkdir(parents=True, exist_ok=True)
        run = _init(self._named, facts, self._settings, "offline", self._folder)
        _log(run, points)
        if conclusion is not None:
            _conclude(run, conclusion)


def make(run: WandbRun, settings: Settings) -> WandbStream | WandbOfflineRun:
    if settings.wandb_mode == "disabled":
        raise ExportNotConfigured("W&B is switched off here.", fix="Unset WANDB_MODE where the exporter runs.")
    return WandbStream(run, settings) if settings.wandb_mode == "online" else WandbOfflineRun(run, settings)


def _init(
    named: WandbRun, facts: RunFacts, settings: Settings, mode: Literal["online", "offline"], folder: Path
) -> wandb.Run:
    """Nothing of this machine goes along: no host name, no git state, no packages, no use of CPU and GPU."""
    key = settings.wandb_api_key
    ours = wandb.Settings(
        mode=mode,
        api_key=None if key is None else key.get_secret_value(),
        base_url=settings.wandb_base_url or "https://api.wandb.ai",
        root_dir=str(folder),
        init_timeout=settings.export_call_s / 2,
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        disable_job_creation=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    return wandb.init(
        project=named.project,
        entity=named.entity,
        id=facts.job_id,
        name=named.name or facts.job_id,
        tags=list(named.tags),
        config=dict(facts.config),
        resume="allow" if mode == "online" else None,
        settings=ours,
    )


def _log(run: wandb.Run, points: Sequence[Point]) -> None:
    for point in points:
        known = {"podium/attempt": point.attempt, "_timestamp": point.at.timestamp()}
        run.log({**point.values, **known}, step=point.step, commit=True)


def _conclude(run: wandb.Run, conclusion: Conclusion) -> None:
    run.summary.update({**conclusion.numbers, **conclusion.words})
    run.finish(exit_code=0 if conclusion.status is JobStatus.SUCCEEDED else 1)
