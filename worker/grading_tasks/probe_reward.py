"""`probe_reward`, `probe_source`: a reward, tried on junk and on the first rows of a data set."""

from typing import Any

from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from core.db import files, rewards
from core.db.models import File
from core.errors import NotFound
from core.grading_tasks import ProbeReward, ProbeSource
from core.ids import FileId
from core.reward_report import FIRST_ROWS
from core.reward_source import RewardEntry, RewardForm
from worker.grading.probing import probe_source
from worker.grading_tasks.context import Context
from worker.grading_tasks.data import first_rows

SPARE_S = 10.0
"""Of the task's time, for fetching the rows and for ending."""

_ENTRY = TypeAdapter(RewardEntry)


class ProbedThingGone(NotFound):
    """The reward version, or the data set, of a probe is not there any more."""

    code = "probed_thing_gone"
    default_fix = "Probe again, with a data set that is there."


def handle(request: dict[str, Any], context: Context) -> dict[str, Any]:
    asked = ProbeReward.model_validate(request)
    with context.place.sessions() as session:
        version = rewards.version(session, asked.version_id)
        file = None if asked.file_id is None else _data_set(session, asked.file_id, context)
    if version is None:
        raise ProbedThingGone("The reward version of this probe is gone.")
    entry = _ENTRY.validate_python(version.entry)
    return _probe(version.source, asked.entry_point or entry.name, asked.form or entry.form, file, context)


def handle_source(request: dict[str, Any], context: Context) -> dict[str, Any]:
    asked = ProbeSource.model_validate(request)
    with context.place.sessions() as session:
        file = _data_set(session, asked.file_id, context)
    return _probe(asked.source, asked.entry_point, asked.form, file, context)


def _probe(source: str, entry_point: str, form: RewardForm, file: File | None, context: Context) -> dict[str, Any]:
    rows = () if file is None else first_rows(context.place.store, file, context.folder, count=FIRST_ROWS)
    path = context.folder / "reward.py"
    path.write_text(source, encoding="utf-8")
    deadline_s = context.time_s - SPARE_S
    return probe_source(path, rows, entry_point=entry_point, form=form, deadline_s=deadline_s).model_dump(mode="json")


def _data_set(session: Session, file_id: FileId, context: Context) -> File:
    file = files.get_owned(session, context.tenant_id, file_id)
    if file is None:
        raise ProbedThingGone("The data set of this probe is gone.")
    return file
