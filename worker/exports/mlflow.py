"""MLflow, over its REST API or straight into a database of its own. The run is found by a tag, the job's id.

MLflow gives runs ids of its own and appends metrics, so that a step sent twice would be there twice. `podium/attempt`
is the last metric of each step: its history is what the server has. Timestamps are the ledger's, and a batch that is
sent again is equal to itself, which MLflow's database stores once.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, Run, RunTag, ViewType

from core.integrations import MlflowRun
from core.settings import Settings
from core.status import JobStatus
from worker.exports.target import NONE_YET, Conclusion, ExportNotConfigured, Point, RunFacts

JOB_TAG = "podium.job_id"
LAST_OF_STEP = "podium/attempt"
ENDED = {JobStatus.SUCCEEDED: "FINISHED", JobStatus.FAILED: "FAILED", JobStatus.CANCELLED: "KILLED"}
METRICS_AT_ONCE = 1000
PARAMS_AT_ONCE = 100
"""Both are limits of its API (`POST runs/log-batch`)."""
LONGEST_NAME = 250
LONGEST_TEXT = 5000
T = TypeVar("T")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_\-. :/]")


class MlflowStream:
    def __init__(self, run: MlflowRun, settings: Settings) -> None:
        if not settings.mlflow_tracking_uri:
            fix = "Set MLFLOW_TRACKING_URI where the exporter runs."
            raise ExportNotConfigured("There is no address of MLflow.", fix=fix)
        self.where = f"MLflow, experiment {run.project}"
        self._named = run
        self._uri = settings.mlflow_tracking_uri.get_secret_value()

    def open(self, facts: RunFacts) -> int:
        self._client = MlflowClient(self._uri)
        self._run_id = self._find_or_create(facts).info.run_id
        self._client.update_run(self._run_id, status="RUNNING")
        for params in _batches(list(_params(facts.flat_config())), PARAMS_AT_ONCE):
            self._client.log_batch(self._run_id, params=params)
        sent = self._client.get_metric_history(self._run_id, LAST_OF_STEP)
        last: int = max((metric.step for metric in sent), default=NONE_YET)
        return last

    def send(self, points: Sequence[Point]) -> None:
        metrics = [metric for point in points for metric in _metrics(point)]
        for some in _batches(metrics, METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=some)

    def finish(self, points: Sequence[Point], conclusion: Conclusion) -> None:
        self.send(points)
        at = _milliseconds(conclusion.at)
        metrics = [Metric(_name(name), number, at, 0) for name, number in conclusion.numbers.items()]
        tags = [RunTag(f"podium.{name}", word[:LONGEST_TEXT]) for name, word in conclusion.words.items()]
        self._client.log_batch(self._run_id, metrics=metrics, tags=tags)
        self._client.set_terminated(self._run_id, ENDED[conclusion.status], end_time=at)

    def leave(self) -> None:
        self._client.update_run(self._run_id, status="SCHEDULED")

    def _find_or_create(self, facts: RunFacts) -> Run:
        """The first of its tag, should there ever be two; one that somebody has deleted is made anew."""
        experiment = self._client.get_experiment_by_name(self._named.project)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(self._named.project)
        found = self._client.search_runs(
            [experiment_id],
            filter_string=f"tags.`{JOB_TAG}` = '{facts.job_id}'",
            run_view_type=ViewType.ACTIVE_ONLY,
            order_by=["attributes.start_time ASC"],
        )
        if found:
            return found[0]
        return self._client.create_run(
            experiment_id,
            start_time=_milliseconds(facts.started_at),
            tags={JOB_TAG: facts.job_id} | dict.fromkeys(map(_name, self._named.tags), "true"),
            run_name=self._named.name or facts.job_id,
        )


def make(run: MlflowRun, settings: Settings) -> MlflowStream:
    return MlflowStream(run, settings)


def _batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _params(config: Mapping[str, Any]) -> Iterator[Param]:
    for name, value in config.items():
        yield Param(_name(name), str(value)[:LONGEST_TEXT])


def _metrics(point: Point) -> Iterator[Metric]:
    at = _milliseconds(point.at)
    for name, value in point.values.items():
        yield Metric(_name(name), value, at, point.step)
    yield Metric(LAST_OF_STEP, point.attempt, at, point.step)


def _name(name: str) -> str:
    """As MLflow takes it: watched fields are called by paths and patterns."""
    return _NOT_IN_NAMES.sub("_", name)[:LONGEST_NAME]


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
