"""Model names on the wire: `name`, `name@revision`, and the ids of what jobs have made (`ft:...`)."""

from core.ids import JobId

FINE_TUNED_PREFIX = "ft:"


def split_reference(text: str) -> tuple[str, str | None]:
    """`name@revision` apart; the revision is None where there is none."""
    name, _, revision = text.partition("@")
    return name, revision or None


def fine_tuned_model(model: str, suffix: str | None, job_id: JobId) -> str:
    """OpenAI's form, `ft:base:suffix:id`. The suffix may be empty; the job's id makes it unique."""
    return f"{FINE_TUNED_PREFIX}{model}:{suffix or ''}:{job_id}"


def fine_tuned_checkpoint(model: str, suffix: str | None, job_id: JobId, step: int) -> str:
    return f"{fine_tuned_model(model, suffix, job_id)}:ckpt-step-{step}"


def job_of(fine_tuned: str) -> JobId | None:
    """The job that made the model of that id, if it is such an id."""
    if not fine_tuned.startswith(FINE_TUNED_PREFIX):
        return None
    return JobId(fine_tuned.rpartition(":")[2])
