"""TensorBoard: one event file, an artifact of the job, written anew from the ledger while it runs and at its end.

Whoever sends a job over HTTP has no shell on the server, and a folder there would be of no use; a file that is
downloaded opens in any TensorBoard. Because it is always written whole, a step that was done again after a resume has
the numbers that count, and nothing is appended to what a crash has left half written.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from core.storage.store import OCTETS
from worker.exports.artifacts import Artifacts
from worker.exports.target import Conclusion, Point, RunFacts


class EventFile:
    is_live: ClassVar[bool] = True

    def __init__(self, artifacts: Artifacts) -> None:
        self.where = "the artifacts of the job"
        self._artifacts = artifacts

    def write(self, facts: RunFacts, points: Sequence[Point], conclusion: Conclusion | None) -> None:
        name = f"tensorboard/events.out.tfevents.{facts.started_at.timestamp():.0f}.{facts.job_id}"
        self.where = f"the artifact {name}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "events"
            _write(path, facts, points, conclusion)
            self._artifacts.put(name, path, content_type=OCTETS)


def make(artifacts: Artifacts) -> EventFile:
    return EventFile(artifacts)


def _write(path: Path, facts: RunFacts, points: Sequence[Point], conclusion: Conclusion | None) -> None:
    """Events in the order in which TensorBoard wants them: its format's version first, then by step."""
    began = facts.started_at.timestamp()
    config = json.dumps(dict(facts.config), indent=1)
    with path.open("wb") as file:
        writer = RecordWriter(file)
        _add(writer, Event(wall_time=began, file_version="brain.Event:2"))
        _add(writer, Event(wall_time=began, summary=hparams_pb(facts.flat_config(), start_time_secs=began)))
        _add(writer, Event(wall_time=began, summary=text_pb("podium/config", f"```\n{config}\n```")))
        for point in points:
            values = [Summary.Value(tag=tag, simple_value=value) for tag, value in point.values.items()]
            _add(writer, Event(wall_time=point.at.timestamp(), step=point.step, summary=Summary(value=values)))
        if conclusion is not None:
            _conclude(writer, conclusion, step=points[-1].step if points else 0)
        writer.flush()


def _conclude(writer: RecordWriter, conclusion: Conclusion, *, step: int) -> None:
    at = conclusion.at.timestamp()
    values = [Summary.Value(tag=tag, simple_value=number) for tag, number in conclusion.numbers.items()]
    words = "\n".join(f"- {name}: {word}" for name, word in conclusion.words.items())
    _add(writer, Event(wall_time=at, step=step, summary=Summary(value=values)))
    _add(writer, Event(wall_time=at, step=step, summary=text_pb("podium/conclusion", words)))


def _add(writer: RecordWriter, event: Event) -> None:
    writer.write(event.SerializeToString())
