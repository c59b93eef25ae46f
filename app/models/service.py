"""Which models there are: the operator's on disk, and what the caller's jobs have made."""

from collections.abc import Iterator

import structlog

from app.models.local import LocalModel, read_local_model
from app.models.names import parse_fine_tuned
from app.models.schemas import ModelObject
from core.db import jobs
from core.db.session import Sessions
from core.errors import ModelNotAllowed, ModelNotFound
from core.ids import TenantId
from core.settings import Settings
from core.status import JobStatus

MAX_TRAINED = 1000
"""Newest trained models in the list; OpenAI's list has no pages."""

log = structlog.get_logger()


def list_models(sessions: Sessions, settings: Settings, tenant_id: TenantId) -> list[ModelObject]:
    with sessions() as session:
        trained = jobs.page(session, tenant_id, after=None, limit=MAX_TRAINED, status=JobStatus.SUCCEEDED)
    return [*map(ModelObject.of_base, _usable(settings)), *map(ModelObject.of_job, trained)]


def get_model(sessions: Sessions, settings: Settings, tenant_id: TenantId, model_id: str) -> ModelObject:
    if model_id in settings.models:
        return ModelObject.of_base(read_local_model(model_id, settings.models[model_id]))
    if (made := parse_fine_tuned(model_id)) is not None:
        with sessions() as session:
            job = jobs.get_owned(session, tenant_id, made.job_id)
        if job is not None and job.status is JobStatus.SUCCEEDED:
            found = ModelObject.of_job(job)
            if found.id == model_id:
                return found
    fix = "GET /v1/models lists the models of this server; models of the Hub are not listed, but jobs may name them."
    raise ModelNotFound(f"There is no model {model_id[:200]!r} on this server.", param="model", fix=fix)


def _usable(settings: Settings) -> Iterator[LocalModel]:
    """Registered models whose files are in order; the operator reads in the log why one is not shown."""
    for name, folder in settings.models.items():
        try:
            yield read_local_model(name, folder)
        except ModelNotAllowed as error:
            log.warning("local_model_unusable", model=name, reason=error.message)
