"""Model names on the wire: `name`, `name@revision`, and the ids of what jobs have made (`ft:...`)."""

import re
from dataclasses import dataclass

from core.ids import JobId

FINE_TUNED_PREFIX = "ft:"

_FINE_TUNED = re.compile(r"ft:.+:(?P<job>ftjob-[0-9a-f]{1,64})(:ckpt-step-(?P<step>[0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class FineTuned:
    job_id: JobId
    step: int | None
    """Of the checkpoint; None: what the job made in the end."""


def split_reference(text: str) -> tuple[str, str | None]:
    """`name@revision` apart; the revision is None where there is none."""
    name, _, revision = text.partition("@")
    return name, revision or None


def fine_tuned_model(model: str, suffix: str | None, job_id: JobId) -> str:
    """OpenAI's form, `ft:base:suffix:id`. The suffix may be empty; the job's id makes it unique."""
    return f"{FINE_TUNED_PREFIX}{model}:{suffix or ''}:{job_id}"


def fine_tuned_checkpoint(model: str, suffix: str | None, job_id: JobId, step: int) -> str:
    return f"{fine_tuned_model(model, suffix, job_id)}:ckpt-step-{step}"


def parse_fine_tuned(text: str) -> FineTuned | None:
    """What the id names, if it is one of those above; whether its base and suffix are right is the caller's to ask."""
    match = _FINE_TUNED.fullmatch(text)
    if match is None:
        return None
    return FineTuned(JobId(match["job"]), None if match["step"] is None else int(match["step"]))
