"""`probe_reward`: a version of a reward, tried on junk and on the first rows of a data set."""

from typing import Any

from pydantic import TypeAdapter

from core.db import files, rewards
from core.db.models import File, RewardVersion
from core.errors import NotFound
from core.grading_tasks import ProbeReward
from core.reward_report import FIRST_ROWS
from core.reward_source import RewardEntry
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
    version, file = _look_up(asked, context)
    rows = () if file is None else first_rows(context.place.store, file, context.folder, count=FIRST_ROWS)
    source = context.folder / "reward.py"
    source.write_text(version.source, encoding="utf-8")
    entry = _ENTRY.validate_python(version.entry)
    deadline_s = context.time_s - SPARE_S
    report = probe_source(
        source,
        rows,
        entry_point=asked.entry_point or entry.name,
        form=asked.form or entry.form,
        deadline_s=deadline_s,
    )
    return report.model_dump(mode="json")


def _look_up(asked: ProbeReward, context: Context) -> tuple[RewardVersion, File | None]:
    with context.place.sessions() as session:
        version = rewards.version(session, asked.version_id)
        file = None if asked.file_id is None else files.get_owned(session, context.tenant_id, asked.file_id)
    if version is None or (asked.file_id is not None and file is None):
        raise ProbedThingGone("The reward version or the data set of this probe is gone.")
    return version, file
